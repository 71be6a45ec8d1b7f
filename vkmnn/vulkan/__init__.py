"""The Vulkan backend: executions, layouts, memory, plans."""
