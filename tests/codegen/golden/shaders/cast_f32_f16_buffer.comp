#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1, local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(set = 0, binding = 0, std430) readonly buffer x_Buffer
{
    vec4 x_data[];
};
#define x_load(i) x_data[i]
layout(set = 0, binding = 1, std430) writeonly buffer y_Buffer
{
    vec4 y_data[];
};
#define y_store(i, v) y_data[i] = (v)
layout(push_constant, std430) uniform P
{
    uint count;
    uint elements;
    uint check;
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

// The nearest half-precision number, ties to even. Packing instructions may round either way, and on
// some devices lose infinities.
float rounded(float x)
{
    uint bits = floatBitsToUint(x);
    uint magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u)
        return x;
    if (magnitude < 0x38800000u) {
        // Below 2^-14 steps are 2^-24, as they are of single precision from 0.5 on.
        precise float shifted = uintBitsToFloat(magnitude) + 0.5;
        precise float back = shifted - 0.5;
        magnitude = floatBitsToUint(back);
    } else {
        magnitude = (magnitude + 0xfffu + (magnitude >> 13 & 1u)) & 0xffffe000u;
        magnitude = magnitude >= 0x47800000u ? 0x7f800000u : magnitude;
    }
    return uintBitsToFloat(bits & 0x80000000u | magnitude);
}

void main()
{
    uint i = global_index();
    if (i >= pc.count)
        return;
    vec4 x = x_load(i);
    vec4 wide = vec4(x);
    y_store(i, vec4(rounded(wide.x), rounded(wide.y), rounded(wide.z), rounded(wide.w)));
}
