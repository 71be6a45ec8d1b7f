"""Files of compiled shaders, which the generator writes and the run time reads.

`lock` lists the variants of a folder of templates, `store` keeps compiled shaders, and `archive`
holds the modules of a wheel.
"""
