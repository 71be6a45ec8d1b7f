"""What `tasks.py` is made of: one module for each thing that a task needs, standard library alone.

`process` runs commands, `apt` installs Debian packages, `environment` keeps `.venv`, `vulkan` finds
devices, `kompute` builds the package `kp`, `drivers` knows the drivers that can be tried here,
`suites` says which tests are run on them and `page` writes what came of it into docs/drivers.md.
"""
