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
#define BINARY_ADD 0u
#define BINARY_SUB 1u
#define BINARY_MUL 2u
#define BINARY_DIV 3u
#define BINARY_POW 4u
#define BINARY_MOD 5u
#define BINARY_FMOD 6u
#define BINARY_MIN 7u
#define BINARY_MAX 8u
#define BINARY_PRELU 9u
#define BINARY_EQUAL 10u
#define BINARY_GREATER 11u
#define BINARY_GREATER_EQUAL 12u
#define BINARY_LESS 13u
#define BINARY_LESS_EQUAL 14u
#define BINARY_AND 15u
#define BINARY_OR 16u
#define BINARY_XOR 17u
#define BINARY_BIT_AND 18u
#define BINARY_BIT_OR 19u
#define BINARY_BIT_XOR 20u
layout(constant_id = 3) const uint KIND = 0u;
layout(constant_id = 4) const uint AXES = 6u;
// Strides count vec4s, or single elements when the operand has one value for all four lanes.
layout(constant_id = 5) const bool A_SPLAT = false;
layout(constant_id = 6) const bool B_SPLAT = false;
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
layout(constant_id = 7) const bool LARGE = true;

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
#ifndef VKMNN_MATH
#define VKMNN_MATH
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
#endif

const float LN2_HIGH = 0.693145751953125; // 15 bits: its product with a small integer is exact
const float LN2_LOW = 1.4286068203094172e-06;
const float PI = 3.1415927410125732;
const float PI_LOW = -8.742277657347586e-08;
const float HALF_PI = 1.5707963705062866;
const float HALF_PI_LOW = -4.371139000186243e-08;

// x * 2^k for -252 <= k <= 254; in two steps, so that neither factor overflows.
float scale2(float x, int k)
{
    int half_k = k >> 1;
    return x * intBitsToFloat((half_k + 127) << 23) * intBitsToFloat((k - half_k + 127) << 23);
}

// (e^r - 1) for |r| <= ln(2) / 2.
float expm1_kernel(float r)
{
    float q = 0.0001990886958083138;
    q = q * r + 0.0013934544986113906;
    q = q * r + 0.00833328440785408;
    q = q * r + 0.04166645556688309;
    q = q * r + 0.1666666716337204;
    q = q * r + 0.5;
    return r + r * r * q;
}

// e^x * 2^shift.
float exp_scaled(float x, int shift)
{
    float c = x > 104.0 ? 104.0 : x;
    c = c < -104.0 ? -104.0 : c;
    precise float k = floor(c * 1.4426950408889634 + 0.5);
    precise float r = (c - k * LN2_HIGH) - k * LN2_LOW;
    return is_nan(x) ? x : scale2(1.0 + expm1_kernel(r), int(k) + shift);
}

float exp32(float x)
{
    return exp_scaled(x, 0);
}

float expm1_32(float x)
{
    if (!(x < 88.0)) // also NaN
        return exp32(x);
    if (x < -18.0)
        return -1.0;
    precise float k = floor(x * 1.4426950408889634 + 0.5);
    precise float r = (x - k * LN2_HIGH) - k * LN2_LOW;
    precise float power = intBitsToFloat((int(k) + 127) << 23);
    precise float result = power * expm1_kernel(r) + (power - 1.0);
    return k == 0.0 ? expm1_kernel(x) : result;
}

// ln(x) + correction, where the correction is far smaller than ln(x) or both are small.
float log_corrected(float x, float correction)
{
    if (!(x > 0.0))
        return x == 0.0 ? -INFINITY : NOT_A_NUMBER;
    if (is_inf(x))
        return x;
    bool tiny = x < 1.1754943508222875e-38;
    uint bits = floatBitsToUint(tiny ? x * 8388608.0 : x);
    int exponent = int(bits >> 23) - (tiny ? 150 : 127);
    uint mantissa = bits & 0x7fffffu;
    bool above = mantissa > 0x3504f3u; // sqrt(2)
    precise float f = uintBitsToFloat(mantissa | (above ? 0x3f000000u : 0x3f800000u)) - 1.0;
    precise float k = float(exponent + (above ? 1 : 0));
    precise float s = f / (2.0 + f);
    precise float z = s * s;
    precise float r = 0.23355303704738617;
    r = r * z + 0.28549882769584656;
    r = r * z + 0.40000131726264954;
    r = r * z + 0.6666666865348816;
    r = r * z;
    precise float h = 0.5 * f * f;
    precise float low = s * (h + r) + (k * LN2_LOW + correction);
    return k * LN2_HIGH + (f - (h - low));
}

float log32(float x)
{
    return log_corrected(x, 0.0);
}

float log1p32(float x)
{
    precise float u = 1.0 + x;
    // What the addition above rounded away.
    precise float lost = u > 2.0 ? 1.0 - (u - x) : x - (u - 1.0);
    if (is_inf(u) || !(u > 0.0))
        return log32(u);
    return abs(x) < 2.9802322387695312e-08 ? x : log_corrected(u, lost / u);
}

float erf32(float x)
{
    float a = abs(x);
    if (a <= 1.0)
        return erf_small(x);
    if (is_nan(x))
        return x;
    float tail = a > 4.0 ? 0.0 : erfc_tail(a, exp32(-a * a));
    return copy_sign(1.0 - tail, x);
}

float erfc32(float x)
{
    float a = abs(x);
    if (a <= 1.0)
        return 1.0 - erf_small(x);
    if (is_nan(x))
        return x;
    float tail = a > 10.1 ? 0.0 : erfc_tail(a, exp32(-a * a));
    return x < 0.0 ? 2.0 - tail : tail;
}

float sigmoid32(float x)
{
    float e = exp32(-abs(x));
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

float softplus32(float x)
{
    return (x < 0.0 ? 0.0 : x) + log1p32(exp32(-abs(x)));
}

float tanh32(float x)
{
    float a = abs(x);
    if (a < 0.625)
    {
        float z = x * x;
        float p = 0.0022989411372691393;
        p = p * z - 0.00835000816732645;
        p = p * z + 0.02177099697291851;
        p = p * z - 0.05395955219864845;
        p = p * z + 0.13333305716514587;
        p = p * z - 0.3333333432674408;
        return copy_sign(x + x * z * p, x);
    }
    float e = exp32(2.0 * (a > 10.0 ? 10.0 : a)); // a > 10.0 is false for NaN
    return copy_sign(1.0 - 2.0 / (e + 1.0), x);
}

float sinh32(float x)
{
    float a = abs(x);
    if (a < 1.0)
    {
        float z = x * x;
        float p = 2.806300699376152e-06;
        p = p * z + 0.00019838099251501262;
        p = p * z + 0.008333339355885983;
        p = p * z + 0.1666666716337204;
        return x + x * z * p;
    }
    float half_e = exp_scaled(a, -1);
    return copy_sign(a > 20.0 ? half_e : half_e - 0.25 / half_e, x);
}

float cosh32(float x)
{
    float half_e = exp_scaled(abs(x), -1);
    return abs(x) > 20.0 ? half_e : half_e + 0.25 / half_e;
}

// (asin(x) - x) / x for 0 <= x <= 0.5, from z = x * x.
float asin_kernel(float z)
{
    float p = 0.0339212641119957;
    p = p * z + 0.017005667090415955;
    p = p * z + 0.03113194741308689;
    p = p * z + 0.04459662362933159;
    p = p * z + 0.07500103116035461;
    p = p * z + 0.1666666567325592;
    return p * z;
}

// sqrt(z) as a sum of two floats: sqrt alone may be off by several ULP.
vec2 sqrt_parts(float z)
{
    precise float root = sqrt(z);
    precise float high = uintBitsToFloat(floatBitsToUint(root) & 0xfffff000u);
    precise float low = (z - high * high) / (root + high);
    return vec2(high, root == 0.0 ? 0.0 : low);
}

float asin32(float x)
{
    float a = abs(x);
    if (!(a <= 1.0))
        return NOT_A_NUMBER;
    if (a <= 0.5)
        return x + x * asin_kernel(x * x);
    precise float z = 0.5 * (1.0 - a);
    vec2 root = sqrt_parts(z);
    precise float rest = 2.0 * (root.y + (root.x + root.y) * asin_kernel(z)) - HALF_PI_LOW;
    precise float result = (HALF_PI - 2.0 * root.x) - rest;
    return copy_sign(result, x);
}

float acos32(float x)
{
    float a = abs(x);
    if (!(a <= 1.0))
        return NOT_A_NUMBER;
    if (a <= 0.5)
    {
        precise float small = HALF_PI - (x + (x * asin_kernel(x * x) - HALF_PI_LOW));
        return small;
    }
    precise float z = 0.5 * (1.0 - a);
    vec2 root = sqrt_parts(z);
    precise float rest = root.y + (root.x + root.y) * asin_kernel(z);
    precise float near = 2.0 * (root.x + rest);
    precise float far = PI - (2.0 * root.x + (2.0 * rest - PI_LOW));
    return x < 0.0 ? far : near;
}

float atan32(float x)
{
    float a = abs(x);
    if (is_nan(x))
        return x;
    bool large = a > 2.414213562373095; // tan(3 pi / 8)
    bool middle = a > 0.4142135623730951; // tan(pi / 8)
    precise float t = large ? -1.0 / a : (middle ? (a - 1.0) / (a + 1.0) : a);
    precise float base = large ? HALF_PI : (middle ? 0.5 * HALF_PI : 0.0);
    precise float base_low = large ? HALF_PI_LOW : (middle ? 0.5 * HALF_PI_LOW : 0.0);
    precise float z = t * t;
    float p = -0.06425602734088898;
    p = p * z + 0.10736415535211563;
    p = p * z - 0.1426336020231247;
    p = p * z + 0.1999952644109726;
    p = p * z - 0.3333333134651184;
    precise float result = base + (t + (t * z * p + base_low));
    return copy_sign(is_inf(a) ? HALF_PI : result, x);
}

float asinh32(float x)
{
    float a = abs(x);
    float z = x * x;
    float result = a > 1.0e8
        ? log32(a) + 0.6931471805599453
        : log1p32(a + z / (1.0 + sqrt(z + 1.0)));
    return is_nan(x) ? x : copy_sign(result, x);
}

float acosh32(float x)
{
    if (!(x >= 1.0))
        return NOT_A_NUMBER;
    float t = x - 1.0;
    return x > 1.0e8 ? log32(x) + 0.6931471805599453 : log1p32(t + sqrt(2.0 * t + t * t));
}

float atanh32(float x)
{
    float a = abs(x);
    if (!(a <= 1.0))
        return NOT_A_NUMBER;
    if (a == 1.0)
        return copy_sign(INFINITY, x);
    return copy_sign(0.5 * log1p32(2.0 * a / (1.0 - a)), x);
}

// 2 / pi to 256 bits, after 32 zero bits.
const uint TWO_OVER_PI[9] = uint[9](
    0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu,
    0xdebbc561u);

uint two_over_pi_bits(uint word, uint shift)
{
    uint high = TWO_OVER_PI[word] << shift;
    return shift == 0u ? high : high | (TWO_OVER_PI[word + 1u] >> (32u - shift));
}

// |x| - quadrant * pi/2 in [-pi/4, pi/4] for finite |x| >= 8192: fixed point, modulo 4 quadrants.
float reduce_large(float a, out uint quadrant)
{
    uint bits = floatBitsToUint(a);
    uint m = (bits & 0x7fffffu) | 0x800000u;
    // a = m * 2^e; the bits of 2/pi from weight 2^(1 - e) down decide the product modulo 4.
    int e = int(bits >> 23) - 150;
    uint position = uint(e + 30);
    uint word = position >> 5;
    uint shift = position & 31u;
    uint high, low, carry;
    uint p0 = two_over_pi_bits(word, shift) * m;
    umulExtended(two_over_pi_bits(word + 1u, shift), m, high, low);
    p0 += high;
    uint p1 = low;
    umulExtended(two_over_pi_bits(word + 2u, shift), m, high, low);
    p1 = uaddCarry(p1, high, carry);
    p0 += carry;
    quadrant = p0 >> 30;
    // 64 fraction bits; from one half on take the distance to the next quadrant.
    uint f0 = (p0 << 2) | (p1 >> 30);
    uint f1 = (p1 << 2) | (low >> 30);
    bool upper = f0 >= 0x80000000u;
    if (upper)
    {
        quadrant = (quadrant + 1u) & 3u;
        f1 = ~f1 + 1u;
        f0 = ~f0 + (f1 == 0u ? 1u : 0u);
    }
    precise float fraction = float(f0) * 2.3283064365386963e-10 + float(f1) * 5.421010862427522e-20;
    precise float angle = fraction * HALF_PI + fraction * HALF_PI_LOW;
    return upper ? -angle : angle;
}

// a - quadrant * pi/2 for a >= 0; NaN for infinities.
float reduce_angle(float a, out uint quadrant)
{
    quadrant = 0u;
    if (is_inf(a) || is_nan(a))
        return NOT_A_NUMBER;
    if (a >= 8192.0)
        return reduce_large(a, quadrant);
    // pi/2 in three parts of 11 bits and a rest: the first three products are exact.
    precise float k = floor(a * 0.6366197723675814 + 0.5);
    precise float r = ((a - k * 1.5703125) - k * 0.00048375129699707031) - k * 7.5495336204767227e-08;
    r = r - k * 2.5633441515945188e-12;
    quadrant = uint(k) & 3u;
    return r;
}

float sin_kernel(float r)
{
    float z = r * r;
    float p = 2.724389105424052e-06;
    p = p * z - 0.00019840040476992726;
    p = p * z + 0.008333331905305386;
    p = p * z - 0.1666666716337204;
    return r + r * z * p;
}

float cos_kernel(float r)
{
    float z = r * r;
    float p = 2.4543000108678825e-05;
    p = p * z - 0.0013888280373066664;
    p = p * z + 0.0416666641831398;
    return 1.0 - (0.5 * z - z * z * p);
}

float sin32(float x)
{
    uint quadrant;
    float r = reduce_angle(abs(x), quadrant);
    float value = (quadrant & 1u) == 0u ? sin_kernel(r) : cos_kernel(r);
    return flip_sign(quadrant >= 2u ? -value : value, x);
}

float cos32(float x)
{
    uint quadrant;
    float r = reduce_angle(abs(x), quadrant);
    float value = (quadrant & 1u) == 0u ? cos_kernel(r) : sin_kernel(r);
    return quadrant == 1u || quadrant == 2u ? -value : value;
}

float tan32(float x)
{
    uint quadrant;
    float r = reduce_angle(abs(x), quadrant);
    float value = (quadrant & 1u) == 0u
        ? sin_kernel(r) / cos_kernel(r)
        : -cos_kernel(r) / sin_kernel(r);
    return flip_sign(value, x);
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

// The rest of a / b, with the sign of a: exact, and in integers, since a division of floats may be off.
float fmod32(float a, float b)
{
    uint x = floatBitsToUint(a) & 0x7fffffffu;
    uint y = floatBitsToUint(b) & 0x7fffffffu;
    if (x >= 0x7f800000u || y > 0x7f800000u || y == 0u)
        return NOT_A_NUMBER;
    if (x < y)
        return a;
    int exponent = max(int(y >> 23), 1);
    int left = max(int(x >> 23), 1) - exponent;
    uint divisor = y >> 23 != 0u ? y & 0x7fffffu | 0x800000u : y;
    uint rest = (x >> 23 != 0u ? x & 0x7fffffu | 0x800000u : x) % divisor;
    // At most 32 times: a step of eight bits keeps a rest of 24 bits in a word.
    for (; left > 0 && rest != 0u; left -= 8)
        rest = (rest << min(left, 8)) % divisor;
    // rest * 2^(exponent - 150); as a float it has the exponent of its highest bit.
    uint bits = floatBitsToUint(float(rest));
    int field = int(bits >> 23) - 150 + exponent;
    bits = field > 0 ? bits & 0x7fffffu | uint(field) << 23 : rest << (exponent - 1 & 31);
    return copy_sign(uintBitsToFloat(rest == 0u ? 0u : bits), a);
}

float power_of(float a, float b)
{
    // Multiplied out, so that powers of whole numbers are exact.
    bool whole = b == trunc(b);
    if (whole && abs(b) <= 32.0) {
        int left = int(abs(b));
        float power = (left & 1) != 0 ? a : 1.0;
        float square = a;
        square *= square;
        power *= (left & 2) != 0 ? square : 1.0;
        square *= square;
        power *= (left & 4) != 0 ? square : 1.0;
        square *= square;
        power *= (left & 8) != 0 ? square : 1.0;
        square *= square;
        power *= (left & 16) != 0 ? square : 1.0;
        square *= square;
        power *= (left & 32) != 0 ? square : 1.0;
        return b < 0.0 ? 1.0 / power : power;
    }
    if (b == 0.5 && a >= 0.0)
        return sqrt(abs(a));
    float size = abs(a);
    bool odd = whole && is_odd(b);
    if (size == 1.0 && (a > 0.0 || whole))
        return odd ? a : 1.0;
    if (is_nan(a) || is_nan(b))
        return NOT_A_NUMBER;
    if (a < 0.0 && !whole && !is_inf(a))
        return NOT_A_NUMBER;
    float power = size == 0.0 ? (b > 0.0 ? 0.0 : INFINITY) : exp32(b * log32(size));
    return flip_sign(power, odd ? a : 0.0);
}

// The rest of a / b with the sign of b.
float mod32(float a, float b)
{
    float rest = fmod32(a, b);
    if ((floatBitsToUint(rest) & 0x7fffffffu) == 0u)
        return copy_sign(rest, b);
    return (floatBitsToInt(rest) ^ floatBitsToInt(b)) < 0 ? rest + b : rest;
}

float apply(float a, float b)
{
    switch (KIND)
    {
    case BINARY_ADD:
        return a + b;
    case BINARY_SUB:
        return a - b;
    case BINARY_MUL:
        return a * b;
    case BINARY_DIV:
        return quotient(a, b);
    case BINARY_POW:
        return power_of(a, b);
    case BINARY_MOD:
        return mod32(a, b);
    case BINARY_FMOD:
        return fmod32(a, b);
    case BINARY_MIN:
        return least(a, b);
    case BINARY_MAX:
        return most(a, b);
    case BINARY_PRELU:
        return a < 0.0 ? a * b : a;
    }
    return 0.0;
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
