"""The modules behind `tasks.py`, one for each need of a task; standard library only.

`process` runs commands, `apt` installs Debian packages, `environment` keeps `.venv`, `vulkan` finds
devices, `kompute` builds the package `kp`, `drivers` knows the drivers that can be tried here,
`suites` says which tests are run on them and `page` writes what came of it into docs/drivers.md.
"""
