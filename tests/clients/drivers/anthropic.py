def chat(messages):
    reply = client.messages.create(
        model=model, messages=messages, max_tokens=64, extra_body={"temperature": 0}
    )
    return "".join(block.text for block in reply.content if block.type == "text")


def stream(question):
    messages = [{"role": "user", "content": question}]
    with client.messages.stream(
        model=model, messages=messages, max_tokens=64, extra_body={"temperature": 0}
    ) as events:
        return list(events.text_stream)


def tool(question, declared):
    function = declared["function"]
    reply = client.messages.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=64,
        extra_body={"temperature": 0},
        tools=[
            {
                "name": function["name"],
                "description": function["description"],
                "input_schema": function["parameters"],
            }
        ],
    )
    (call,) = (block for block in reply.content if block.type == "tool_use")
    return [call.name, json.dumps(call.input)]


def schema(question, wanted, quietly):
    reply = client.messages.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=64,
        output_config={"format": {"type": "json_schema", "schema": wanted}},
        extra_body={"temperature": 0, **quietly},
    )
    return "".join(block.text for block in reply.content if block.type == "text")


def models():
    return [one.id for one in client.models.list()]
