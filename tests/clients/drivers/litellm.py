def chat(messages):
    return complete(messages=messages, temperature=0, max_tokens=64).choices[0].message.content


def stream(question):
    messages = [{"role": "user", "content": question}]
    chunks = complete(messages=messages, temperature=0, stream=True)
    return [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]


def tool(question, declared):
    messages = [{"role": "user", "content": question}]
    reply = complete(messages=messages, temperature=0, tools=[declared])
    (call,) = reply.choices[0].message.tool_calls
    return [call.function.name, call.function.arguments]


def schema(question, wanted, quietly):
    reply = complete(
        messages=[{"role": "user", "content": question}],
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": wanted}},
        extra_body=quietly,
    )
    return reply.choices[0].message.content


def models():
    given = complete.keywords
    return litellm.get_valid_models(
        check_provider_endpoint=True,
        custom_llm_provider="hosted_vllm",
        api_key=given["api_key"],
        api_base=given["api_base"],
    )
