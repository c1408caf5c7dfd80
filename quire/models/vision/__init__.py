"""Picture encoders: from pixels to rows of a decoder's residual stream."""
