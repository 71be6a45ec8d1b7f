"""Results of pipelines: objects that can be printed, drawn, saved and serialised."""
