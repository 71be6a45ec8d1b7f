#version 450
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1, local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(set = 0, binding = 0, rgba32f) uniform readonly imageBuffer x_image;
#define x_load(i) imageLoad(x_image, int(i))
layout(set = 0, binding = 1, rgba32f) uniform readonly imageBuffer w_image;
#define w_load(i) imageLoad(w_image, int(i))
layout(set = 0, binding = 2, rgba32f) uniform readonly imageBuffer bias_image;
#define bias_load(i) imageLoad(bias_image, int(i))
layout(set = 0, binding = 3, rgba32f) uniform readonly imageBuffer residual_image;
#define residual_load(i) imageLoad(residual_image, int(i))
layout(set = 0, binding = 4, std430) writeonly buffer y_Buffer
{
    vec4 y_data[];
};
#define y_store(i, v) y_data[i] = (v)
layout(push_constant, std430) uniform P
{
    uint pixels;
    int in_size[3];
    uint out_size[3];
    int kernel[3];
    int stride[3];
    int dilation[3];
    int pad[3];
    int in_block;
    int in_blocks;
    uint out_block;
    uint out_stride[4];
    uint out_offset;
    uint group_blocks;
    uint group_panels;
    uint channels;
    float act_alpha;
    float act_beta;
} pc;
layout(constant_id = 3) const bool PADDED = true;
layout(constant_id = 4) const bool HAS_RESIDUAL = false;
layout(constant_id = 5) const bool ONE_TAP = false;
layout(constant_id = 6) const bool ONE_BLOCK = false;
layout(constant_id = 7) const bool LARGE = true;

uint divide(uint a, uint b)
{
    return LARGE ? a / b : uint((float(a) + 0.5) * (1.0 / float(b)));
}
// The tap after k, which is (depth, height, width).
ivec3 next_tap(ivec3 k, ivec3 kernel)
{
    ++k.z;
    if (k.z == kernel.z)
        k = ivec3(k.x, k.y + 1, 0);
    if (k.y == kernel.y)
        k = ivec3(k.x + 1, 0, 0);
    return k;
}
// NaN passes through.
vec4 activate(vec4 x)
{
    vec4 y = mix(x, vec4(pc.act_alpha), lessThan(x, vec4(pc.act_alpha)));
    return mix(y, vec4(pc.act_beta), greaterThan(y, vec4(pc.act_beta)));
}
#define RESIDUAL_ADD_BEFORE 0u
#define RESIDUAL_ADD_AFTER 1u
#define RESIDUAL_MUL_AFTER 2u
layout(constant_id = 8) const uint RESIDUAL = 0u;

// The residual meets the sum before the activation or behind it.
vec4 activate_with(vec4 sum, vec4 residual)
{
    if (HAS_RESIDUAL && RESIDUAL == RESIDUAL_ADD_BEFORE)
        sum += residual;
    vec4 result = activate(sum);
    if (HAS_RESIDUAL && RESIDUAL == RESIDUAL_ADD_AFTER)
        result += residual;
    if (HAS_RESIDUAL && RESIDUAL == RESIDUAL_MUL_AFTER)
        result *= residual;
    return result;
}

// Which lanes of a channel block hold channels.
bvec4 live_lanes(uint block)
{
    return lessThan(4u * block + uvec4(0u, 1u, 2u, 3u), uvec4(pc.channels));
}

// Applies residual and activation, and clears the lanes behind the last channel. Kernels call this
// outside of any condition, where CPU devices read push constants cheaply.
vec4 finish(vec4 sum, bvec4 live, uint index)
{
    vec4 residual = vec4(0.0);
    if (HAS_RESIDUAL)
        residual = residual_load(index);
    return mix(vec4(0.0), activate_with(sum, residual), live);
}

// Finds computed pixel m: `origin` is the position of its first tap, `image` the first texel of its
// image in the input, `place` its texel in channel block 0 of the output.
void locate(uint m, out ivec3 origin, out int image, out uint place)
{
    uint row = divide(m, pc.out_size[2]);
    uint plane = divide(row, pc.out_size[1]);
    uint n = divide(plane, pc.out_size[0]);
    uint x = m - row * pc.out_size[2];
    uint y = row - plane * pc.out_size[1];
    uint z = plane - n * pc.out_size[0];
    origin = ivec3(
        int(z) * pc.stride[0] - pc.pad[0],
        int(y) * pc.stride[1] - pc.pad[1],
        int(x) * pc.stride[2] - pc.pad[2]);
    image = int(n) * pc.in_size[0] * pc.in_size[1] * pc.in_size[2];
    place = pc.out_offset + n * pc.out_stride[0] + z * pc.out_stride[1] + y * pc.out_stride[2]
        + x * pc.out_stride[3];
}

bool inside(ivec3 at, ivec3 size)
{
    return !PADDED || all(lessThan(uvec3(at), uvec3(size)));
}

// Texel of position `at` in an image, 0 when it lies outside.
int texel(ivec3 at, ivec3 size)
{
    int index = (at.x * size.y + at.y) * size.z + at.z;
    return inside(at, size) ? index : 0;
}

// What lies outside the input counts as zero; where no pads are, the test vanishes.
vec4 keep(bool kept, vec4 value)
{
    return PADDED ? mix(vec4(0.0), value, bvec4(kept)) : value;
}

void main()
{
    uint lane = gl_LocalInvocationID.x;
    uint tile = gl_WorkGroupID.x + gl_WorkGroupID.z * gl_NumWorkGroups.x;
    uint panel = gl_WorkGroupID.y;
    uint group = panel / pc.group_panels;
    uint group_blocks = pc.group_blocks;
    uint first = (panel - group * pc.group_panels) * 1u;
    uint pixels = pc.pixels;
    ivec3 size = ivec3(pc.in_size[0], pc.in_size[1], pc.in_size[2]);
    ivec3 kernel = ivec3(pc.kernel[0], pc.kernel[1], pc.kernel[2]);
    ivec3 dilation = ivec3(pc.dilation[0], pc.dilation[1], pc.dilation[2]);
    int in_block = pc.in_block;
    int in_blocks = ONE_BLOCK ? 1 : pc.in_blocks;
    int taps = ONE_TAP ? 1 : kernel.x * kernel.y * kernel.z;
    int step = 1;
    int wi = int(panel) * taps * in_blocks * 4 * step;
    uint m0 = (tile * 4u + 0u) * gl_WorkGroupSize.x + lane;
    ivec3 origin0;
    int image0;
    uint place0;
    locate(min(m0, pixels - 1u), origin0, image0, place0);
    image0 += int(group) * in_blocks * in_block;
    vec4 acc0_0 = vec4(0.0);
    uint m1 = (tile * 4u + 1u) * gl_WorkGroupSize.x + lane;
    ivec3 origin1;
    int image1;
    uint place1;
    locate(min(m1, pixels - 1u), origin1, image1, place1);
    image1 += int(group) * in_blocks * in_block;
    vec4 acc1_0 = vec4(0.0);
    uint m2 = (tile * 4u + 2u) * gl_WorkGroupSize.x + lane;
    ivec3 origin2;
    int image2;
    uint place2;
    locate(min(m2, pixels - 1u), origin2, image2, place2);
    image2 += int(group) * in_blocks * in_block;
    vec4 acc2_0 = vec4(0.0);
    uint m3 = (tile * 4u + 3u) * gl_WorkGroupSize.x + lane;
    ivec3 origin3;
    int image3;
    uint place3;
    locate(min(m3, pixels - 1u), origin3, image3, place3);
    image3 += int(group) * in_blocks * in_block;
    vec4 acc3_0 = vec4(0.0);
    ivec3 k = ivec3(0);
    [[unroll]] for (int tap = 0; tap < taps; ++tap) {
        ivec3 offset = k * dilation;
        bool in0 = inside(origin0 + offset, size);
        int at0 = image0 + texel(origin0 + offset, size);
        bool in1 = inside(origin1 + offset, size);
        int at1 = image1 + texel(origin1 + offset, size);
        bool in2 = inside(origin2 + offset, size);
        int at2 = image2 + texel(origin2 + offset, size);
        bool in3 = inside(origin3 + offset, size);
        int at3 = image3 + texel(origin3 + offset, size);
        [[unroll]] for (int c = 0; c < in_blocks; ++c) {
            vec4 w0_0 = w_load(wi + 0 * step);
            vec4 w1_0 = w_load(wi + 1 * step);
            vec4 w2_0 = w_load(wi + 2 * step);
            vec4 w3_0 = w_load(wi + 3 * step);
            vec4 x0 = keep(in0, x_load(at0));
            vec4 x1 = keep(in1, x_load(at1));
            vec4 x2 = keep(in2, x_load(at2));
            vec4 x3 = keep(in3, x_load(at3));
            acc0_0 += (x0.x * w0_0 + x0.y * w1_0) + (x0.z * w2_0 + x0.w * w3_0);
            at0 += in_block;
            acc1_0 += (x1.x * w0_0 + x1.y * w1_0) + (x1.z * w2_0 + x1.w * w3_0);
            at1 += in_block;
            acc2_0 += (x2.x * w0_0 + x2.y * w1_0) + (x2.z * w2_0 + x2.w * w3_0);
            at2 += in_block;
            acc3_0 += (x3.x * w0_0 + x3.y * w1_0) + (x3.z * w2_0 + x3.w * w3_0);
            at3 += in_block;
            wi += 4 * step;
        }
        k = next_tap(k, kernel);
    }
    {
        bool kept = first + 0u < group_blocks;
        uint block = group * group_blocks + min(first + 0u, group_blocks - 1u);
        vec4 bias = bias_load(block);
        bvec4 live = live_lanes(block);
        uint start = block * pc.out_block;
        vec4 v0 = finish(acc0_0 + bias, live, start + place0);
        if (kept && m0 < pixels)
            y_store(start + place0, v0);
        vec4 v1 = finish(acc1_0 + bias, live, start + place1);
        if (kept && m1 < pixels)
            y_store(start + place1, v1);
        vec4 v2 = finish(acc2_0 + bias, live, start + place2);
        if (kept && m2 < pixels)
            y_store(start + place2, v2);
        vec4 v3 = finish(acc3_0 + bias, live, start + place3);
        if (kept && m3 < pixels)
            y_store(start + place3, v3);
    }
}
