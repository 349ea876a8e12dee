ds_config = {
    'zero_optimization': {
        'stage': 3,
        'reduce_bucket_size': width * width,
    },
}
