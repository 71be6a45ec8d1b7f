#version 450
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1, local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(set = 0, binding = 0, rgba32f) uniform readonly imageBuffer a_image;
#define a_load(i) imageLoad(a_image, int(i))
layout(set = 0, binding = 1, rgba32f) uniform readonly imageBuffer b_image;
#define b_load(i) imageLoad(b_image, int(i))
layout(set = 0, binding = 2, std430) writeonly buffer y_Buffer
{
    vec4 y_data[];
};
#define y_store(i, v) y_data[i] = (v)
layout(push_constant, std430) uniform P
{
    uint count;
    uint size[5];
    uint a_stride[6];
    uint b_stride[6];
    float act_alpha;
    float act_beta;
    uint elements;
    uint check;
} pc;
layout(constant_id = 3) const uint AXES = 6u;
// Strides count vec4s, or single elements when the operand has one value for all four lanes.
layout(constant_id = 4) const bool A_SPLAT = false;
layout(constant_id = 5) const bool B_SPLAT = false;
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
layout(constant_id = 6) const bool LARGE = true;

uint divide(uint a, uint b)
{
    return LARGE ? a / b : uint((float(a) + 0.5) * (1.0 / float(b)));
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
layout(constant_id = 7) const uint ACTIVATION = 0u;
#ifndef VKMNN_SPECIAL
#define VKMNN_SPECIAL
#define INFINITY uintBitsToFloat(0x7f800000u)
#define NOT_A_NUMBER uintBitsToFloat(0x7fc00000u)

bool is_nan(float x)
{
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}

bvec4 is_nan(vec4 x)
{
    return greaterThan(floatBitsToUint(x) & 0x7fffffffu, uvec4(0x7f800000u));
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
    float p = 7.889095286373049e-05;
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
    float p = 0.08089045435190201;
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

// 1 + erf(x / sqrt(2)) without cancellation for negative x.
float activation_gelu(float x)
{
    float s = 0.7071067811865476 * x;
    float a = abs(s);
    float tail = erfc_tail(a, exp(-a * a));
    float outer = s < 0.0 ? tail : 2.0 - tail;
    return 0.5 * x * (a <= 1.0 ? 1.0 + erf_small(s) : outer);
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

// The clamp is what most kernels end in: it takes whole vectors.
vec4 activate(vec4 x)
{
    switch (ACTIVATION)
    {
    case ACTIVATION_CLIP:
        vec4 y = mix(x, vec4(pc.act_alpha), lessThan(x, vec4(pc.act_alpha)));
        y = mix(y, vec4(pc.act_beta), greaterThan(y, vec4(pc.act_beta)));
        return mix(y, x, is_nan(x));
    default:
        return vec4(activate(x.x), activate(x.y), activate(x.z), activate(x.w));
    }
}

float apply(float a, float b)
{
    return a + b;
}

float finish(float a, float b)
{
    return activate(apply(a, b));
}

void main()
{
    uint i = global_index();
    if (i >= pc.count)
        return;
    uint rest = i;
    uint ia = 0u;
    uint ib = 0u;
    if (AXES > 5u) {
        uint size = pc.size[4];
        uint next = divide(rest, size);
        uint k = rest - next * size;
        ia += k * pc.a_stride[5];
        ib += k * pc.b_stride[5];
        rest = next;
    }
    if (AXES > 4u) {
        uint size = pc.size[3];
        uint next = divide(rest, size);
        uint k = rest - next * size;
        ia += k * pc.a_stride[4];
        ib += k * pc.b_stride[4];
        rest = next;
    }
    if (AXES > 3u) {
        uint size = pc.size[2];
        uint next = divide(rest, size);
        uint k = rest - next * size;
        ia += k * pc.a_stride[3];
        ib += k * pc.b_stride[3];
        rest = next;
    }
    if (AXES > 2u) {
        uint size = pc.size[1];
        uint next = divide(rest, size);
        uint k = rest - next * size;
        ia += k * pc.a_stride[2];
        ib += k * pc.b_stride[2];
        rest = next;
    }
    if (AXES > 1u) {
        uint size = pc.size[0];
        uint next = divide(rest, size);
        uint k = rest - next * size;
        ia += k * pc.a_stride[1];
        ib += k * pc.b_stride[1];
        rest = next;
    }
    ia += rest * pc.a_stride[0];
    ib += rest * pc.b_stride[0];
    vec4 va = a_load(A_SPLAT ? ia >> 2 : ia);
    vec4 vb = b_load(B_SPLAT ? ib >> 2 : ib);
    if (A_SPLAT)
        va = vec4(va[ia & 3u]);
    if (B_SPLAT)
        vb = vec4(vb[ib & 3u]);
    y_store(i, vec4(finish(va.x, vb.x), finish(va.y, vb.y), finish(va.z, vb.z), finish(va.w, vb.w)));
}
