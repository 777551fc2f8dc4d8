// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
char LICENSE[] __attribute__((section("license"), used)) = "Dual BSD/GPL";
