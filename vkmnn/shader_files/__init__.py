"""Files of compiled shaders, which the generator writes and the run time reads.

`lock` says which variants a folder of templates has, `store` keeps what has been compiled, and
`archive` holds the modules that a wheel ships.
"""
