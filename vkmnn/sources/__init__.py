"""Sources of models: paths, URLs, names on the Hub, zip archives and folders.

All front ends call `locate.model_file` or `locate.model_folder` and then read local files.
docs/decisions/model-names.md defines which strings name a download.
"""
