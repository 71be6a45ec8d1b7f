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
#define ACTIVATION_NONE 0u
#define ACTIVATION_RELU 1u
#define ACTIVATION_CLIP 2u
#define ACTIVATION_LEAKY_RELU 3u
#define ACTIVATION_SIGMOID 4u
#define ACTIVATION_SILU 5u
#define ACTIVATION_GELU 6u
#define ACTIVATION_GELU_TANH 7u
#define ACTIVATION_HARD_SIGMOID 8u
#define ACTIVATION_HARD_SWISH 9u
#define ACTIVATION_TANH 10u
#define ACTIVATION_ELU 11u
#define ACTIVATION_SOFTPLUS 12u
#define ACTIVATION_QUICK_GELU 13u
#define ACTIVATION_REQUANTIZE 14u
layout(constant_id = 8) const uint ACTIVATION = 0u;
#ifndef VKMNN_SPECIAL
#define VKMNN_SPECIAL
#define INFINITY uintBitsToFloat(0x7f800000u)
#define NOT_A_NUMBER uintBitsToFloat(0x7fc00000u)

bool is_nan(float x)
{
    return (floatBitsToInt(x) & 0x7fffffff) > 0x7f800000;
}

bvec4 is_nan(vec4 x)
{
    // Signed: processors compare vectors of unsigned integers in several steps.
    return greaterThan(floatBitsToInt(x) & 0x7fffffff, ivec4(0x7f800000));
}

bool is_inf(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u;
}

float copy_sign(float magnitude, float sign)
{
    uint bits = floatBitsToUint(magnitude) & 0x7fffffffu;
    return uintBitsToFloat(bits | (floatBitsToUint(sign) & 0x80000000u));
}

// x with its sign turned where `sign` has one.
float flip_sign(float x, float sign)
{
    return uintBitsToFloat(floatBitsToUint(x) ^ (floatBitsToUint(sign) & 0x80000000u));
}

// Whether a whole number is odd; from 2^24 on all are even.
bool is_odd(float x)
{
    return abs(x) < 16777216.0 && (int(x) & 1) != 0;
}

// The smaller, and the larger, of two numbers, NaN when either is, as numpy's minimum and maximum.
float least(float a, float b)
{
    return b < a || is_nan(b) ? b : a;
}

float most(float a, float b)
{
    return b > a || is_nan(b) ? b : a;
}

vec4 most(vec4 a, vec4 b)
{
    return mix(a, b, bvec4(uvec4(greaterThan(b, a)) | uvec4(is_nan(b))));
}
#endif
#ifndef VKMNN_ERF
#define VKMNN_ERF
// erf(x) for |x| <= 1.
float erf_small(float x)
{
    float z = x * x;
    float p = float(7.889095286373049e-05);
    p = p * z - 0.0008020834065973759;
    p = p * z + 0.005189534742385149;
    p = p * z - 0.026854444295167923;
    p = p * z + 0.11283600330352783;
    p = p * z - 0.3761262595653534;
    p = p * z + 0.12837916612625122;
    return x + x * p;
}

// erfc(a) for a >= 1; e is exp(-a * a).
float erfc_tail(float a, float e)
{
    float t = 1.0 / (1.0 + 0.5 * a);
    float p = float(0.08089045435190201);
    p = p * t - 0.18503837287425995;
    p = p * t + 0.025057289749383926;
    p = p * t + 0.10534482449293137;
    p = p * t + 0.15804041922092438;
    p = p * t + 0.25296762585639954;
    p = p * t + 0.28099071979522705;
    p = p * t + 0.2821994125843048;
    p = p * t - 4.10351594837266e-06;
    return a > 10.1 ? 0.0 : p * e;
}
// erf(x) for |x| <= 1.
vec4 erf_small(vec4 x)
{
    vec4 z = x * x;
    vec4 p = vec4(7.889095286373049e-05);
    p = p * z - 0.0008020834065973759;
    p = p * z + 0.005189534742385149;
    p = p * z - 0.026854444295167923;
    p = p * z + 0.11283600330352783;
    p = p * z - 0.3761262595653534;
    p = p * z + 0.12837916612625122;
    return x + x * p;
}

// erfc(a) for a >= 1; e is exp(-a * a).
vec4 erfc_tail(vec4 a, vec4 e)
{
    vec4 t = 1.0 / (1.0 + 0.5 * a);
    vec4 p = vec4(0.08089045435190201);
    p = p * t - 0.18503837287425995;
    p = p * t + 0.025057289749383926;
    p = p * t + 0.10534482449293137;
    p = p * t + 0.15804041922092438;
    p = p * t + 0.25296762585639954;
    p = p * t + 0.28099071979522705;
    p = p * t + 0.2821994125843048;
    p = p * t - 4.10351594837266e-06;
    return mix(p * e, vec4(0.0), greaterThan(a, vec4(10.1)));
}
#endif

float activation_clip(float x, float low, float high)
{
    float y = x < low ? low : x;
    y = y > high ? high : y;
    return is_nan(x) ? x : y;
}

float activation_sigmoid(float x)
{
    float e = exp(-abs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

vec4 activation_sigmoid(vec4 x)
{
    vec4 e = exp(-abs(x));
    return mix(vec4(1.0), e, lessThan(x, vec4(0.0))) / (1.0 + e);
}

// 1 + erf(x / sqrt(2)) without cancellation for negative x.
float activation_gelu(float x)
{
    float s = 0.7071067811865476 * x;
    float a = abs(s);
    float tail = erfc_tail(a, exp(-a * a));
    float outer = s < 0.0 ? tail : 2.0 - tail;
    return 0.5 * x * (a <= 1.0 ? 1.0 + erf_small(s) : outer);
}

vec4 activation_gelu(vec4 x)
{
    vec4 s = 0.7071067811865476 * x;
    vec4 a = abs(s);
    vec4 tail = erfc_tail(a, exp(-a * a));
    vec4 outer = mix(2.0 - tail, tail, lessThan(s, vec4(0.0)));
    return 0.5 * x * mix(outer, 1.0 + erf_small(s), lessThanEqual(a, vec4(1.0)));
}

float activation_tanh(float x)
{
    float a = abs(x);
    float z = x * x;
    // Below 1/8 the Taylor series: 1 - 2 / (e + 1) would cancel.
    float series = a - a * z * (0.33333333 - z * (0.13333333 - z * 0.053968254));
    float e = exp(-2.0 * a);
    float y = (1.0 - e) / (1.0 + e);
    // exp of NaN may be anything.
    return is_nan(x) ? x : flip_sign(a < 0.125 ? series : y, x);
}

// log(1 + e^x); below -4 the Taylor series of log(1 + e) keeps small values exact.
float activation_softplus(float x)
{
    float e = exp(-abs(x));
    float series = e * (1.0 - e * (0.5 - e * (0.33333333 - e * 0.25)));
    float y = (x < 0.0 ? 0.0 : x) + (e < 0.02 ? series : log(1.0 + e));
    return is_nan(x) ? x : y;
}

float activate(float x)
{
    switch (ACTIVATION)
    {
    case ACTIVATION_RELU:
        return x > 0.0 || is_nan(x) ? x : 0.0;
    case ACTIVATION_CLIP:
        return activation_clip(x, pc.act_alpha, pc.act_beta);
    case ACTIVATION_LEAKY_RELU:
        return x < 0.0 ? pc.act_alpha * x : x;
    case ACTIVATION_SIGMOID:
        return is_nan(x) ? x : activation_sigmoid(x);
    case ACTIVATION_SILU:
        return x * activation_sigmoid(x);
    case ACTIVATION_GELU:
        return activation_gelu(x);
    case ACTIVATION_GELU_TANH:
        // 0.5 * (1 + tanh(u)) = sigmoid(2 * u)
        return x * activation_sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x));
    case ACTIVATION_HARD_SIGMOID:
        return activation_clip(pc.act_alpha * x + pc.act_beta, 0.0, 1.0);
    case ACTIVATION_HARD_SWISH:
        return x * activation_clip(x / 6.0 + 0.5, 0.0, 1.0);
    case ACTIVATION_TANH:
        return activation_tanh(x);
    case ACTIVATION_ELU:
        return x < 0.0 ? pc.act_alpha * (exp(x) - 1.0) : x;
    case ACTIVATION_SOFTPLUS:
        return activation_softplus(x);
    case ACTIVATION_QUICK_GELU:
        return x * activation_sigmoid(pc.act_alpha * x);
    default:
        return x;
    }
}

// The clamp is what most kernels end in, and the long ones are inlined at every result of an
// unrolled kernel: they take whole vectors, a fourth of the instructions that drivers go through.
vec4 activate(vec4 x)
{
    switch (ACTIVATION)
    {
    case ACTIVATION_CLIP:
        vec4 y = mix(x, vec4(pc.act_alpha), lessThan(x, vec4(pc.act_alpha)));
        y = mix(y, vec4(pc.act_beta), greaterThan(y, vec4(pc.act_beta)));
        return mix(y, x, is_nan(x));
    case ACTIVATION_SILU:
        return x * activation_sigmoid(x);
    case ACTIVATION_GELU:
        return activation_gelu(x);
    case ACTIVATION_GELU_TANH:
        return x * activation_sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x));
    default:
        return vec4(activate(x.x), activate(x.y), activate(x.z), activate(x.w));
    }
}
#define RESIDUAL_ADD_BEFORE 0u
#define RESIDUAL_ADD_AFTER 1u
#define RESIDUAL_MUL_AFTER 2u
layout(constant_id = 9) const uint RESIDUAL = 0u;

// The residual is added before or after the activation.
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
#ifndef VKMNN_ROUND_EVEN
#define VKMNN_ROUND_EVEN
// Of numbers from -2^22 to 2^22, as codes are: 1.5 * 2^23 and such a number add up to 2^23 to 2^24.
vec4 round_code(vec4 x)
{
    precise vec4 moved = x + 12582912.0;
    return vec4(floatBitsToInt(moved) - 0x4b400000);
}

// Of any number: from 2^23 on all are whole. Infinities, NaN and the sign of zero remain.
float round_even(float x)
{
    float size = abs(x);
    precise float moved = size + 8388608.0;
    float whole = float(floatBitsToInt(moved) - 0x4b000000);
    whole = size < 8388608.0 ? whole : size;
    return intBitsToFloat(floatBitsToInt(whole) | floatBitsToInt(x) & int(0x80000000));
}
// Of any number: from 2^23 on all are whole. Infinities, NaN and the sign of zero remain.
vec4 round_even(vec4 x)
{
    vec4 size = abs(x);
    precise vec4 moved = size + 8388608.0;
    vec4 whole = vec4(floatBitsToInt(moved) - 0x4b000000);
    whole = mix(size, whole, lessThan(size, vec4(8388608.0)));
    return intBitsToFloat(floatBitsToInt(whole) | floatBitsToInt(x) & ivec4(0x80000000));
}
#endif
#ifndef VKMNN_QUOTIENT
#define VKMNN_QUOTIENT
float quotient(float a, float b)
{
    float q = a / b;
    precise float q_wide = q * 4097.0;
    precise float q_high = q_wide - (q_wide - q);
    precise float q_low = q - q_high;
    precise float b_wide = b * 4097.0;
    precise float b_high = b_wide - (b_wide - b);
    precise float b_low = b - b_high;
    precise float product = q * b;
    precise float lost = ((q_high * b_high - product) + q_high * b_low + q_low * b_high) + q_low * b_low;
    precise float rest = (a - product) - lost;
    precise float correction = rest / b;
    precise float corrected = q + correction;
    // By bits: NaN compares as larger than any number. Zeros keep their sign; what overflowed is left alone.
    int size = floatBitsToInt(abs(correction));
    int bound = floatBitsToInt(abs(q) * 1e-6);
    return size < bound ? corrected : q;
}

vec4 quotient(vec4 a, vec4 b)
{
    vec4 q = a / b;
    precise vec4 q_wide = q * 4097.0;
    precise vec4 q_high = q_wide - (q_wide - q);
    precise vec4 q_low = q - q_high;
    precise vec4 b_wide = b * 4097.0;
    precise vec4 b_high = b_wide - (b_wide - b);
    precise vec4 b_low = b - b_high;
    precise vec4 product = q * b;
    precise vec4 lost = ((q_high * b_high - product) + q_high * b_low + q_low * b_high) + q_low * b_low;
    precise vec4 rest = (a - product) - lost;
    precise vec4 correction = rest / b;
    precise vec4 corrected = q + correction;
    // By bits: NaN compares as larger than any number. Zeros keep their sign; what overflowed is left alone.
    ivec4 size = floatBitsToInt(abs(correction));
    ivec4 bound = floatBitsToInt(abs(q) * 1e-6);
    return mix(q, corrected, lessThan(size, bound));
}

#endif
layout(constant_id = 10) const uint TABLE = 0u;

// `factor`: of each lane. `unit`: scales of a code and of its residual, and of what both make. `range`:
// bounds of the latter, what the result is multiplied by, and the first code of the table. `table`:
// where that begins.
struct Ending
{
    vec4 factor;
    vec4 unit;
    vec4 range;
    uint table;
};

Ending ending_of(uint block, uint blocks)
{
    uint next = 2u * blocks;
    Ending ending;
    ending.factor = bias_load(blocks + block);
    ending.unit = bias_load(next);
    ending.range = bias_load(next + 1u);
    ending.table = next + 3u;
    return ending;
}

// What a table has for codes.
vec4 looked_up(vec4 code, Ending ending)
{
    uvec4 entry = ending.table + min(uvec4(max(code - ending.range.w, vec4(0.0))), uvec4(TABLE - 1u));
    return vec4(bias_load(entry.x).x, bias_load(entry.y).x, bias_load(entry.z).x, bias_load(entry.w).x);
}

// An exact sum of codes as a code; a residual that joins later is codes, too.
vec4 requantize(vec4 sum, vec4 residual, Ending ending)
{
    if (HAS_RESIDUAL && RESIDUAL == RESIDUAL_ADD_BEFORE)
        sum += residual;
    precise vec4 scaled = sum * ending.factor;
    // A sum that is cast to floats has no bounds: it may be beyond all codes.
    vec4 code = round_even(clamp(scaled, vec4(pc.act_alpha), vec4(pc.act_beta)));
    if (TABLE > 0u)
        code = looked_up(code, ending);
    if (HAS_RESIDUAL && RESIDUAL == RESIDUAL_ADD_AFTER) {
        precise vec4 first = code * ending.unit.x;
        precise vec4 second = residual * ending.unit.y;
        precise vec4 both = first + second;
        vec4 steps = quotient(both, ending.unit.zzzz);
        code = round_code(clamp(steps, ending.range.xxxx, ending.range.yyyy));
    }
    return code * ending.range.z;
}

// Which lanes of a channel block hold channels, and how sums of codes end there.
struct Lanes
{
    bvec4 live;
    Ending ending;
};

Lanes lanes_of(uint block)
{
    Lanes lanes;
    lanes.live = lessThan(4u * block + uvec4(0u, 1u, 2u, 3u), uvec4(pc.channels));
    switch (ACTIVATION)
    {
    case ACTIVATION_REQUANTIZE:
        lanes.ending = ending_of(block, (pc.channels + 3u) >> 2);
        break;
    default:
        lanes.ending.table = 0u;
    }
    return lanes;
}

// Applies residual and activation, and clears the lanes past the last channel. Kernels call this
// outside of any condition, where CPU devices read push constants cheaply.
vec4 finish(vec4 sum, Lanes lanes, uint index)
{
    vec4 residual = vec4(0.0);
    if (HAS_RESIDUAL)
        residual = residual_load(index);
    switch (ACTIVATION)
    {
    case ACTIVATION_REQUANTIZE:
        return mix(vec4(0.0), requantize(sum, residual, lanes.ending), lanes.live);
    default:
        return mix(vec4(0.0), activate_with(sum, residual), lanes.live);
    }
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
        Lanes lanes = lanes_of(block);
        uint start = block * pc.out_block;
        vec4 v0 = finish(acc0_0 + bias, lanes, start + place0);
        if (kept && m0 < pixels)
            y_store(start + place0, v0);
        vec4 v1 = finish(acc1_0 + bias, lanes, start + place1);
        if (kept && m1 < pixels)
            y_store(start + place1, v1);
        vec4 v2 = finish(acc2_0 + bias, lanes, start + place2);
        if (kept && m2 < pixels)
            y_store(start + place2, v2);
        vec4 v3 = finish(acc3_0 + bias, lanes, start + place3);
        if (kept && m3 < pixels)
            y_store(start + place3, v3);
    }
}
