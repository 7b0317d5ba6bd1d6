"""Twenty messages to a chatbot in words that its training pairs do not use, and acceptable answers."""

PARAPHRASES: list[tuple[str, tuple[str, ...]]] = [
    ("Hi how are you doing my friend", ("i am fine", "i am fine thank you")),
    ("Hello there, how are you feeling today?", ("i am fine", "i am fine thank you")),
    ("Hey! Is everything all right with you?", ("i am fine", "i am fine thank you")),
    ("Could you please tell me your name?", ("my name is regard",)),
    ("Please tell me your age", ("i am only a few minutes old",)),
    ("Am I chatting with a robot?", ("yes i am a small computer program",)),
    ("Do you know what the weather is like today?", ("i hope the sun is shining where you are",)),
    ("Which food do you like best?", ("i do not eat but pizza sounds good",)),
    ("Which hobbies do you have?", ("i like to read and to talk with people",)),
    ("Which films do you like to watch?", ("i like films with a happy ending",)),
    ("I am really sorry, it was my mistake", ("no problem do not worry",)),
    ("Okay, good night, I am going to sleep", ("good night sleep well",)),
    ("Hello, could you help me, please?", ("of course what do you need",)),
    ("You are a very smart bot", ("thank you that is very kind of you",)),
    ("Do you ever need to sleep?", ("i never sleep i only wait",)),
    ("Which country would you like to visit?", ("i would like to see the mountains",)),
    ("Which colour do you like best?", ("my favourite colour is blue",)),
    ("Do you have any plans for this weekend?", ("i will stay here and wait for you",)),
    ("I feel very sad today", ("i am sorry to hear that do you want to talk about it",)),
    ("Could you explain what attention is?", ("attention lets a model look at the words that matter",)),
]


def normal(text: str) -> str:
    """Return the words in lower case, without punctuation, separated by single spaces."""
    return " ".join("".join(c for c in text.lower() if c.isalnum() or c.isspace()).split())


def sensible(answer: str, accepted: tuple[str, ...]) -> bool:
    return normal(answer) in {normal(text) for text in accepted}
