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
    uint columns;
    uint size;
    uint inner;
} pc;
layout(constant_id = 3) const bool LOG = false;
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

float power(float x)
{
    float c = x < -87.0 ? -87.0 : x;
    precise float k = floor(c * 1.4426950408889634 + 0.5);
    precise float r = (x - k * LN2_HIGH) - k * LN2_LOW; // of x: `c` may be a maximum, which NaN does not survive
    float q = r * 0.0001990886958083138 + 0.0013934544986113906;
    q = q * r + 0.00833328440785408;
    q = q * r + 0.04166645556688309;
    q = q * r + 0.1666666716337204;
    q = q * r + 0.5;
    float y = intBitsToFloat((int(k) + 127) << 23) * (1.0 + (r + r * r * q));
    return x < -87.0 ? 0.0 : y;
}

vec4 power(vec4 x)
{
    vec4 c = mix(x, vec4(-87.0), lessThan(x, vec4(-87.0)));
    precise vec4 k = floor(c * 1.4426950408889634 + 0.5);
    precise vec4 r = (x - k * LN2_HIGH) - k * LN2_LOW; // of x: `c` may be a maximum, which NaN does not survive
    vec4 q = r * 0.0001990886958083138 + 0.0013934544986113906;
    q = q * r + 0.00833328440785408;
    q = q * r + 0.04166645556688309;
    q = q * r + 0.1666666716337204;
    q = q * r + 0.5;
    vec4 y = intBitsToFloat((ivec4(k) + 127) << 23) * (1.0 + (r + r * r * q));
    return mix(y, vec4(0.0), lessThan(x, vec4(-87.0)));
}

void main()
{
    uint column = global_index();
    if (column >= pc.columns)
        return;
    uint inner = pc.inner;
    uint size = pc.size;
    uint outer = column / inner;
    uint begin = outer * size * inner + (column - outer * inner);
    vec4 peak = x_load(begin);
    uint i = begin + inner;
    for (uint k = 1u; k < size; ++k)
    {
        peak = max(peak, x_load(i));
        i += inner;
    }
    vec4 sum = vec4(0.0);
    i = begin;
    for (uint k = 0u; k < size; ++k)
    {
        sum += power(x_load(i) - peak);
        i += inner;
    }
    vec4 factor = 1.0 / sum;
    vec4 shift = vec4(log32(sum.x), log32(sum.y), log32(sum.z), log32(sum.w));
    i = begin;
    for (uint k = 0u; k < size; ++k)
    {
        vec4 value = x_load(i) - peak;
        y_store(i, LOG ? value - shift : power(value) * factor);
        i += inner;
    }
}
