# What follows is the same for every client: a line of JSON in, a line of JSON out.
import json
import sys

for line in sys.stdin:
    name, arguments = json.loads(line)
    print(json.dumps(globals()[name](*arguments)), flush=True)
