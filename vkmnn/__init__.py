"""vkmnn runs neural networks on any Vulkan device, from Python."""
