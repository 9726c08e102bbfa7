"""ipvs mode: virtual servers, ipsets and the rules around them."""
