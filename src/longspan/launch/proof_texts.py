"""The texts whose log-probabilities the proof compares, and the prompts from which it generates.

Written for this purpose. Each stays far below 256 tokens, since vLLM computes the logits of a whole prompt at once when it is
asked for `prompt_logprobs`. They differ in kind (prose, a story, code, numbers, records) because damage need not touch every
kind of text alike. Changing any of them changes what a cached reference means, so `TEXTS_VERSION` is part of its key.
"""

TEXTS_VERSION = 1

# What is compared, token by token, with a one-rank reference of the same checkpoint.
TEXTS: tuple[str, ...] = (
    (
        "A bridge is a promise made to people who have not yet arrived. The engineer who draws it will never meet most "
        "of those who cross, yet every beam is chosen with them in mind. Wind pushes on the deck, frost opens the joints, "
        "and salt works slowly into the steel. For this reason the drawings speak less about the day of opening than "
        "about the ordinary mornings that follow, when somebody walks across in the rain, thinks of something else, and "
        "does not look down. The best compliment a bridge can receive is that nobody noticed it at all."
    ),
    (
        "Water boils at one hundred degrees Celsius at sea level, but at the top of a high mountain it boils sooner, because "
        "the air above it weighs less. A cook who does not know this waits in vain for her potatoes to become soft. She adds "
        "more wood to the fire, and the pot boils harder, but it does not become hotter. What she needs is a lid that "
        "holds the steam, so that the pressure rises and the temperature with it. Physics is patient with those who ask "
        "and indifferent to those who insist."
    ),
    (
        "def moving_average(values, width):\n"
        "    if width < 1:\n"
        '        raise ValueError("width must be at least 1")\n'
        "    total = 0.0\n"
        "    result = []\n"
        "    for index, value in enumerate(values):\n"
        "        total += value\n"
        "        if index >= width:\n"
        "            total -= values[index - width]\n"
        "        result.append(total / min(index + 1, width))\n"
        "    return result\n"
        "\n"
        "for row in moving_average([3, 1, 4, 1, 5, 9, 2, 6], 3):\n"
        "    print(round(row, 2))\n"
    ),
    (
        "Monday 12, Tuesday 24, Wednesday 36, Thursday 48, Friday 60, Saturday 72, Sunday 84. The sum of the first three is "
        "12 + 24 + 36 = 72, and the sum of all seven is 336. Squares: 1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 121, 144, 169, "
        "196. Powers of two: 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096."
    ),
    (
        '{"name": "harbour", "opened": "1931-05-02", "berths": 14, "cranes": [{"id": 1, "lift_tonnes": 40}, {"id": 2, '
        '"lift_tonnes": 65}], "contact": {"city": "Trieste", "country": "Italy"}, "ships": [{"name": "Aurora", "length_metres": '
        '182, "cargo": "coffee"}, {"name": "Borealis", "length_metres": 211, "cargo": "timber"}]}'
    ),
    (
        '"Did you lock the door?" asked Martha.\n"I thought you did," said her brother, and both of them stopped in the middle '
        "of the road. It was late, the last bus had gone, and the house was two miles behind them. A dog barked somewhere. "
        '"We could go back," he said.\n"Or we could trust our neighbours," said Martha.\nThey looked at each other for a '
        "while. Then, without another word, they turned around and began to walk home."
    ),
)

# From which the decode path continues; what comes out is not judged, only whether both paths agree on it.
PROMPTS: tuple[str, ...] = (
    "The history of the lighthouse begins long before electricity. At first,",
    "Here is a short list of five vegetables and how to cook them:\n1.",
    "def fibonacci(n):\n    ",
)
