#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1, local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(set = 0, binding = 0, std430) readonly buffer x_Buffer
{
    ivec4 x_data[];
};
#define x_load(i) x_data[i]
layout(set = 0, binding = 1, std430) writeonly buffer y_Buffer
{
    ivec4 y_data[];
};
#define y_store(i, v) y_data[i] = (v)
layout(push_constant, std430) uniform P
{
    uint n4;
} pc;
// Flat index of this invocation in a grid that was folded over x and y (a device may allow only
// 65535 workgroups per axis).
uint global_index()
{
    return gl_GlobalInvocationID.x
        + gl_GlobalInvocationID.y * gl_NumWorkGroups.x * gl_WorkGroupSize.x;
}

uint ceil_div(uint a, uint b)
{
    return (a + b - 1u) / b;
}

void main()
{
    uint i = global_index();
    if (i >= pc.n4)
        return;
    y_store(i, x_load(i));
}
