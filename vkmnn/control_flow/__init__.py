"""If, Loop and Scan on the device: the graphs inside them are networks of their own."""
