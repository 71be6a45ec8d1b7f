"""What pipelines return: objects that print, draw, save and describe themselves."""
