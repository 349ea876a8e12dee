"""No class has more than 20 data members, keeps more than 8 references, or is spread over several .cpp files.

References are what a struct is full of that hands the state of others around: who changes what can no longer be seen.
The member functions of a class are defined in one .cpp file. Two are allowed if the comment above the class names both
and says what separates them, in a line that begins like this:

    // Defined in host_machine.cpp and host_machine_lanes.cpp: what callers do, and what the threads of the lanes do.

Sources are read as text, formatted as ours are. EXCEPTIONS have more members, each with its count, and only shrink.
`--list N` prints the N largest classes.
"""
import collections
import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ["answers", "cli", "configs", "core", "executor", "gui", "policies", "python", "sim", "studies", "traces"]
MOST_MEMBERS, MOST_REFERENCES = 20, 8
EXCEPTIONS = {"GenerateOptions": 46, "ModelDescription": 47}

HEAD = re.compile(r"(?:template <.*> )?(?:class|struct|union) (?:\w+\(.*?\) |alignas\(.*?\) )?([\w:<>*, ]*?)"
                  r"(?: final)?(?: : .*)?$")
NO_MEMBER = re.compile(r"(?:using|friend|static|typedef|enum|template|class|struct|union|public|private|protected)\b")

Class = collections.namedtuple("Class", "name path comment members references")


def without_comments(text):
    """Strings and comments blanked out, lines kept."""
    def blank(match):
        return '""' if match.group(0)[0] in "\"'" else "\n" * match.group(0).count("\n")
    text = re.sub(r'R"(\w*)\((.*?)\)\1"', lambda match: '""' + "\n" * match.group(0).count("\n"), text, flags=re.DOTALL)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])\'(?:[^\'\\\n]|\\.)*\'|//[^\n]*|/\*.*?\*/', blank, text,
                  flags=re.DOTALL)


def without_templates(statement):
    """Without what is between < and >, which may have parentheses and commas."""
    statement = statement.replace("->", "  ").replace("<<", "  ").replace("operator<", "operator ")
    before = None
    while before != statement:
        before, statement = statement, re.sub(r"<[^<>]*>", "", statement)
    return statement


def members_of(statement):
    """(data members, references) that a statement in a class declares."""
    statement = re.sub(r"^(?:public|private|protected):|\[\[\w+\]\]|\bmutable\b|\bTENCACHE_\w+(?:\([^)]*\))?", "", statement)
    statement = without_templates(statement).strip()
    if not statement or NO_MEMBER.match(statement):
        return 0, 0
    before = re.split(r"[={]", statement)[0]
    if "(" in before or "operator" in before or not re.search(r"\w[\s&*]+\w+", before):
        return 0, 0
    names = re.sub(r"\([^()]*\)|\{.*?\}|\[.*?\]", "", statement).count(",") + 1
    return names, names if re.search(r"[^&]&\s*\w+\s*$", before) else 0


def classes_of(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    found, lines = [], text.split("\n")
    stack, statement = [], ""  # of braces: a class (its counts), or None
    bare = re.sub(r"^[ \t]*#(?:.*\\\n)*.*$", lambda match: "\n" * match.group(0).count("\n"), without_comments(text),
                  flags=re.MULTILINE)
    line = 0
    for symbol in bare:
        if symbol == "\n":
            line += 1
        if symbol == "{":
            head = HEAD.match(re.sub(r"^(?:(?:public|private|protected): ?)+", "", " ".join(statement.split())))
            is_class = head and not re.search(r"[;=(]", re.sub(r"\(.*?\)", "", statement))
            if is_class and (not stack or stack[-1] is not None):
                above = line - statement.lstrip().count("\n") - 1
                comment = []
                while above >= 0 and re.match(r"\s*(//|template)", lines[above]):
                    comment.insert(0, lines[above])
                    above -= 1
                stack.append([head.group(1).split("<")[0].strip(), comment, 0, 0])
                statement = ""
            elif re.match(r"\s*(?:inline )?namespace\b|\s*extern \"\"", statement):
                stack.append([None, [], 0, 0])
                statement = ""
            else:
                stack.append(None)
                statement += "{"
        elif symbol == "}":
            ended = stack.pop() if stack else None
            if ended is None:
                statement += "}"
                # The body of a function ends a statement as well.
                if stack and stack[-1] is not None and "(" in without_templates(statement.split("{")[0]):
                    statement = ""
            elif ended[0] is not None:
                found.append(Class(ended[0], path, ended[1], ended[2], ended[3]))
                statement = ""
        elif symbol == ";" and (not stack or stack[-1] is not None):
            if stack and stack[-1][0] is not None:
                members, references = members_of(" ".join(statement.split()))
                stack[-1][2] += members
                stack[-1][3] += references
            statement = ""
        else:
            statement += symbol
    return found


def sources(*endings):
    for top in FOLDERS:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            yield from (os.path.relpath(os.path.join(folder, name), ROOT) for name in sorted(names)
                        if name.endswith(endings))


def all_classes():
    return [one for path in sources(".h", ".cpp", ".cu") for one in classes_of(path)]


def spread(classes):
    """(class, .cpp files) of those in more files than are allowed, of classes in headers whose names no other has."""
    definition = re.compile(r"^(?=\S)(?:[\w:<>,&*\[\] ]+ )?[&*]*(?:\w+::)*(\w+)::[~\w]+\(", re.MULTILINE)
    headers = collections.Counter(one.name for one in classes if one.path.endswith(".h"))
    files = collections.defaultdict(set)
    for path in sources(".cpp"):
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            for owner in definition.findall(file.read()):
                files[owner].add(os.path.basename(path))
    for one in classes:
        allowed = re.search(r"Defined in (\S+\.cpp) and (\S+\.cpp): \S", " ".join(one.comment))
        if one.path.endswith(".h") and headers[one.name] == 1 and len(files[one.name]) > 1 and \
                files[one.name] != (set(allowed.groups()) if allowed else None):
            yield one, sorted(files[one.name])


class Classes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.classes = all_classes()

    def test_the_tree_is_read(self):
        by_name = {one.name: one for one in self.classes}
        self.assertGreater(len(self.classes), 700)
        self.assertGreater(sum(one.members for one in self.classes), 3000)
        self.assertIn("Engine", by_name)

    def test_members_are_few(self):
        counts = collections.Counter()
        for one in self.classes:
            counts[one.name] = max(counts[one.name], one.members)
        self.assertEqual({name: count for name, count in counts.items() if count > MOST_MEMBERS}, EXCEPTIONS)

    def test_references_are_few(self):
        self.assertEqual([(one.name, one.path, one.references) for one in self.classes
                          if one.references > MOST_REFERENCES], [])

    def test_classes_are_in_one_file(self):
        self.assertEqual([(one.name, files) for one, files in spread(self.classes)], [])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:
        for one in sorted(all_classes(), key=lambda each: -each.members)[:int(sys.argv[2])]:
            print(f"{one.members:4} {one.references:3} references  {one.name}  {one.path}")
    else:
        unittest.main()
