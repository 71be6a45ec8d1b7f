"""If, Loop and Scan on the device: the graphs inside them are separate networks."""
