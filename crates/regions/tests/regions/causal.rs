//! Clients that move between three regions while links are cut and regions are killed; the causal checker judges.
