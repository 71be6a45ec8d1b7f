"""Where models come from: paths, addresses, names of the hub, zip archives and folders.

Every face calls `locate.model_file` or `locate.model_folder` and then reads files of this machine.
The rule by which a text names a download is docs/decisions/model-names.md.
"""
