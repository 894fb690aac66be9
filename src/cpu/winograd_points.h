/* Winograd's transforms of one dimension, on vectors that lie some vectors apart: see winograd.c. For
 * winograd_lanes.h, which has defined the type lanes and SIDE, the number of points.
 *
 * B' d weighs the inputs with the coefficients of the product of (x - every other point), for each point;
 * `scaled` divides by that product's value at the point. This has to be done once, to the inputs or to the
 * kernel (scale). */

#if SIDE == 6 /* 0, P, -P, Q, -Q and infinity */

#define P  0.625f
#define Q  1.5f
#define P2 (P * P)
#define P3 (P * P * P)
#define P4 (P * P * P * P)
#define Q2 (Q * Q)
#define Q3 (Q * Q * Q)
#define Q4 (Q * Q * Q * Q)
/* Those values; infinity's is 1. */
#define N0 (P2 * Q2)
#define NP (2 * P2 * (P2 - Q2))
#define NQ (2 * Q2 * (Q2 - P2))

/* B' d */
DP_INLINE void transform_in(const lanes *d, int64_t from, lanes *out, int64_t to, const bool scaled)
{
    const float s0 = scaled ? 1 / N0 : 1, sp = scaled ? 1 / NP : 1, sq = scaled ? 1 / NQ : 1;
    lanes d0 = d[0], d1 = d[from], d2 = d[2 * from], d3 = d[3 * from], d4 = d[4 * from], d5 = d[5 * from];
    lanes even_p = sp * d4 - (sp * Q2) * d2, odd_p = (sp * P) * (d3 - Q2 * d1);
    lanes even_q = sq * d4 - (sq * P2) * d2, odd_q = (sq * Q) * (d3 - P2 * d1);
    out[0] = (s0 * N0) * d0 - (s0 * (P2 + Q2)) * d2 + s0 * d4;
    out[to] = even_p + odd_p;
    out[2 * to] = even_p - odd_p;
    out[3 * to] = even_q + odd_q;
    out[4 * to] = even_q - odd_q;
    out[5 * to] = N0 * d1 - (P2 + Q2) * d3 + d5;
}

/* The polynomial with n coefficients c at the points: A c, and G c but for its scales. n: 2 to 5. */
DP_INLINE void evaluate(const lanes *c, int64_t from, lanes *out, int64_t to, const int n)
{
    lanes even_p = c[0], even_q = c[0], odd_p = P * c[from], odd_q = Q * c[from];
    if (n > 2) {
        even_p += P2 * c[2 * from];
        even_q += Q2 * c[2 * from];
    }
    if (n > 3) {
        odd_p += P3 * c[3 * from];
        odd_q += Q3 * c[3 * from];
    }
    if (n > 4) {
        even_p += P4 * c[4 * from];
        even_q += Q4 * c[4 * from];
    }
    out[0] = c[0];
    out[to] = even_p + odd_p;
    out[2 * to] = even_p - odd_p;
    out[3 * to] = even_q + odd_q;
    out[4 * to] = even_q - odd_q;
    out[5 * to] = c[(n - 1) * from];
}

/* The transpose: A' m, and G' m of scaled m. */
DP_INLINE void gather(const lanes *m, int64_t from, lanes *out, int64_t to, const int n)
{
    lanes m1 = m[from], m2 = m[2 * from], m3 = m[3 * from], m4 = m[4 * from];
    lanes sum_p = m1 + m2, difference_p = m1 - m2, sum_q = m3 + m4, difference_q = m3 - m4;
    lanes powers[5] = {m[0] + sum_p + sum_q, P * difference_p + Q * difference_q, P2 * sum_p + Q2 * sum_q,
                       P3 * difference_p + Q3 * difference_q, P4 * sum_p + Q4 * sum_q};
    powers[n - 1] += m[5 * from];
    for (int i = 0; i < n; i++)
        out[i * to] = powers[i];
}

/* The scales of G's rows. */
DP_INLINE void scale(lanes *v, int64_t step)
{
    v[0] *= (float)(1 / N0);
    v[step] *= (float)(1 / NP);
    v[2 * step] *= (float)(1 / NP);
    v[3 * step] *= (float)(1 / NQ);
    v[4 * step] *= (float)(1 / NQ);
}

#else /* SIDE == 4: 0, 1, -1 and infinity; the values are -1, 2, 2 and 1 */

DP_INLINE void transform_in(const lanes *d, int64_t from, lanes *out, int64_t to, const bool scaled)
{
    lanes d0 = d[0], d1 = d[from], d2 = d[2 * from], d3 = d[3 * from];
    const float s0 = scaled ? -1 : 1, s1 = scaled ? 0.5f : 1;
    out[0] = s0 * (d2 - d0);
    out[to] = s1 * (d2 + d1);
    out[2 * to] = s1 * (d2 - d1);
    out[3 * to] = d3 - d1;
}

/* n: 2 or 3. */
DP_INLINE void evaluate(const lanes *c, int64_t from, lanes *out, int64_t to, const int n)
{
    lanes even = c[0], odd = c[from];
    if (n > 2)
        even += c[2 * from];
    out[0] = c[0];
    out[to] = even + odd;
    out[2 * to] = even - odd;
    out[3 * to] = c[(n - 1) * from];
}

DP_INLINE void gather(const lanes *m, int64_t from, lanes *out, int64_t to, const int n)
{
    lanes sum = m[from] + m[2 * from];
    lanes powers[3] = {m[0] + sum, m[from] - m[2 * from], sum};
    powers[n - 1] += m[3 * from];
    for (int i = 0; i < n; i++)
        out[i * to] = powers[i];
}

DP_INLINE void scale(lanes *v, int64_t step)
{
    v[0] = -v[0];
    v[step] *= 0.5f;
    v[2 * step] *= 0.5f;
}

#endif
