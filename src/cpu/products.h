/* How the matrix products of product_lanes.h go, for those who plan them. */
#ifndef DP_CPU_PRODUCTS_H
#define DP_CPU_PRODUCTS_H

enum {
    DP_PRODUCT_ROWS = 6,          /* in the registers */
    DP_PRODUCT_SUM_CHANNELS = 64, /* in one sum */
};

#endif
