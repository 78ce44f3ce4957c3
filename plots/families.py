"""Looks of the families of KV policies, which policies of one family share."""

# Colours of the families, in the order of legends and tables; in grey and to the colour-blind the markers tell them apart.
FAMILIES = {"position": "#882255", "attention": "#332288", "keys and values": "#997700", "expected attention": "#117733", "merging": "#aa4499",
            "eviction and format": "#cc6677", "format": "#b8500c", "selection": "#3388bb", "prefill selection": "#7a8f1d",
            "prompt pruning": "#5f5f9f", "reference": "#303030"}
MARKERS = dict(zip(FAMILIES, ("v", "o", "^", "D", "P", "p", "s", "X", "h", "<", "*")))
