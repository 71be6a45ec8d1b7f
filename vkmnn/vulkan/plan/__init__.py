"""Plans of the Vulkan backend: order, memory, recording, prediction."""
