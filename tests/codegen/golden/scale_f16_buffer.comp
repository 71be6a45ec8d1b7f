#version 450
#extension GL_EXT_shader_16bit_storage : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1, local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(set = 0, binding = 0, std430) readonly buffer x_Buffer
{
    f16vec4 x_data[];
};
#define x_load(i) vec4(x_data[i])
layout(set = 0, binding = 1, std430) writeonly buffer y_Buffer
{
    f16vec4 y_data[];
};
#define y_store(i, v) y_data[i] = f16vec4(vec4(v))
layout(push_constant, std430) uniform P
{
    uint n4;
    float alpha;
    uint steps[3];
} pc;
layout(constant_id = 3) const float SHIFT = 0.5;
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
        vec4 value = x_load(i);
    value *= pc.alpha;

    value += SHIFT * 0.0;
    value += SHIFT * 1.0;
    y_store(i, value);
}
