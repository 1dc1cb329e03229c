"""Launch lines: one forgiving reader, which `convert`, `lint` and `plan` share.

    >>> from sparkbook.launch.reader import read
    >>> line = read("docker run --gpus all vllm/vllm-openai:v0.28.0 openai/gpt-oss-20b --port 80")
    >>> line.image, line.option("gpus"), [word.text for word in line.serve]
    ('vllm/vllm-openai:v0.28.0', 'all', ['openai/gpt-oss-20b', '--port', '80'])

`reader` reads a text into a `line.Line`; below it are the words of a shell (`lexer`, `variables`,
`commands`), the options of a container engine (`docker`), a compose file (`compose`), and the
command that serves (`server`, `arguments`, `release`). Formats of other people's files are in
`sparkbook.formats`, on top of this package.
"""
