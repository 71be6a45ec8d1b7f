"""The engines that `vkmnn bench` knows, one a module; each imports its engine when it loads."""
