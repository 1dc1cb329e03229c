def chat(messages):
    return model.invoke(messages, temperature=0, max_tokens=64).content


def stream(question):
    return [chunk.content for chunk in model.stream(question, temperature=0) if chunk.content]


def tool(question, declared):
    (call,) = model.bind_tools([declared]).invoke(question, temperature=0).tool_calls
    return [call["name"], json.dumps(call["args"])]


def schema(question, wanted, quietly):
    quiet = model.model_copy(update={"temperature": 0.0, "extra_body": quietly})
    asked = quiet.with_structured_output({"title": "a", **wanted}, method="json_schema")
    return json.dumps(asked.invoke(question))


def models():
    return [one.id for one in model.root_client.models.list()]
