"""Write tests/fixtures/quantized: tiny checkpoints in the weight formats of the field.

Each ``make_*`` module is run by hand in an environment of its own outside the repository, because
the libraries pin each other's dependencies; its docstring names the packages. Install torch first
and alone (``pip install torch==2.13.0``), and hold it with a constraint for what follows, so that
nothing brings CUDA. ``base`` makes the model and writes the folders; ``check`` decodes them all
literally. ``tests/fixtures/quantized/README.md`` says what each folder holds.

    environment   packages                                                  modules
    auto-round    auto-round==0.16.1 transformers==5.24.0                   make_auto_round
    llmcompressor llmcompressor==0.14.0.1                                   make_llmcompressor
    bitsandbytes  bitsandbytes==0.50.2 transformers==5.23.0 accelerate      make_bitsandbytes,
                                                                            make_mxfp4, make_fp8
    others        hqq==0.2.8.post1 torchao==0.18.0 transformers==5.23.0     make_hqq, make_torchao
    squeezellm    its repository, transformers==5.24.0                      make_squeezellm
    gptqmodel     gptqmodel==7.6.0 transformers==5.24.0                     make_gptqmodel
"""
