"""No class has more than 20 data members, and none is spread over several .cpp files. Clang's syntax tree is asked.

Members: a class has its own, and those of the plain structs that serve it alone: structs without member functions that
are nested in it, or that no other class and no function in a header mentions. Pointers to functions do not count.

Files: the member functions of a class are defined in one .cpp file at most. Two are allowed if the comment above the
class names both and says what separates them, in a line that begins like this:

    // Defined in host_machine.cpp and host_machine_lanes.cpp: what callers do, and what the threads of the lanes do.

EXCEPTIONS are the classes above the limits, each with its count. They only shrink: an exception that is no longer
needed, or that allows more than there is, fails, too.

It needs libclang's Python bindings (Debian: python3-clang-14), and is skipped without them. The include paths of
libraries come from a build folder (--build; default build/release). Files that include LibTorch or
CUDA are left out where its headers are absent. `--list N` prints the N largest classes.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import re
import sys
import tempfile
import unittest

try:
    from clang import cindex
except ImportError:
    sys.path.append("/usr/lib/python3/dist-packages")  # Debian's bindings serve any Python
    try:
        from clang import cindex
    except ImportError:
        print("skipped: no libclang for Python here (Debian: python3-clang-14)")
        sys.exit(77)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build", "release")
MOST_MEMBERS = 20
MEMBER_EXCEPTIONS = {"GenerateOptions": 44, "Layer": 24, "ModelDescription": 43, "StepFollower": 23, "TuneAnswer": 24}
FILE_EXCEPTIONS = {}

TORCH, CUDA = ("torch/", "ATen/", "c10/"), ("cuda.h",)
KINDS = cindex.CursorKind
CLASSES = {KINDS.CLASS_DECL, KINDS.STRUCT_DECL, KINDS.UNION_DECL, KINDS.CLASS_TEMPLATE,
           KINDS.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION}
FUNCTIONS = {KINDS.FUNCTION_DECL, KINDS.FUNCTION_TEMPLATE, KINDS.CXX_METHOD, KINDS.CONVERSION_FUNCTION,
             KINDS.CONSTRUCTOR, KINDS.DESTRUCTOR}
# Function bodies hold nothing that counts here. A header that only a build writes is no obstacle: the last flag, which
# has no name in the bindings of clang 14, is "keep going".
PARSE = cindex.TranslationUnit.PARSE_SKIP_FUNCTION_BODIES | cindex.TranslationUnit.PARSE_INCOMPLETE | 0x200
FILES_A_UNIT = 24


# ---------------------------------------------------------------------------------------------------------- sources

def sources():
    """The C++ files of the tree, without build folders."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith((".", "build"))]
        yield from (os.path.relpath(os.path.join(folder, name), ROOT) for name in names
                    if name.endswith((".h", ".cpp")))


def that_include(headers, paths):
    """Those that include headers whose names begin like that, directly or through headers of ours."""
    included = {}
    for path in paths:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            included[path] = re.findall(r'^#include [<"]([^>"]+)[>"]', file.read(), re.MULTILINE)
    found, before = set(), None
    while found != before:
        before = set(found)
        found = {path for path in paths if any(name.startswith(headers) or name in before or
                                               os.path.join(os.path.dirname(path), name) in before
                                               for name in included[path])}
    return found


def compiler_flags():
    """The include paths of libraries and the switches of all files of the build; without one, Debian's paths."""
    found = {}
    commands = os.path.join(BUILD, "compile_commands.json")
    if os.path.exists(commands):
        with open(commands, encoding="utf-8") as file:
            for entry in json.load(file):
                for path, switch in re.findall(r"-isystem (\S+)|(-DTENCACHE_WITH\w+)(?= )", entry["command"]):
                    found["-isystem" + path if path else switch] = None
    else:
        found = dict.fromkeys("-isystem/usr/include/" + name
                              for name in ("eigen3", "imgui", "stb", "torch/csrc/api/include"))
    texts = ['-DTENCACHE_%s=""' % name for name in ("SOURCE_DIR", "BINARY_DIR", "VERSION")]
    return ["-std=c++20", "-w", "-ferror-limit=0", "-I" + ROOT] + texts + list(found)


# ---------------------------------------------------------------------------------------------------------- reading

class Found:
    """What translation units declare, in plain values, which processes can hand over."""

    def __init__(self):
        self.classes = {}  # key -> name, place, fields, functions, outer, mentions
        self.mentioned_by_functions = set()  # in headers; keys of classes
        self.definitions = collections.defaultdict(set)  # key -> .cpp files that define members

    def take(self, other):
        for key, value in other.classes.items():
            self.classes.setdefault(key, value)
        self.mentioned_by_functions |= other.mentioned_by_functions
        for key, files in other.definitions.items():
            self.definitions[key] |= files


def key_of(cursor):
    key = cursor.get_usr()
    return key + "|" + str(cursor.location.file) if "@aN" in key or not key else key


def classes_named(cursor):
    """Keys of the classes that a declaration names; aliases are looked through, function bodies are not."""
    found, waiting, aliases = set(), [cursor], set()
    while waiting:
        for child in waiting.pop().get_children():
            if child.kind in (KINDS.TYPE_REF, KINDS.TEMPLATE_REF):
                target = child.referenced
                if target is None:
                    continue
                if target.kind in CLASSES:
                    found.add(key_of(target))
                elif target.get_usr() not in aliases:
                    aliases.add(target.get_usr())
                    waiting.append(target)
            elif child.kind != KINDS.COMPOUND_STMT:
                waiting.append(child)
    return found


def is_function(kind):
    """Pointers to functions: a table of them is an interface."""
    kind = kind.get_canonical()
    return kind.kind == cindex.TypeKind.POINTER and kind.get_pointee().kind == cindex.TypeKind.FUNCTIONPROTO


def read_class(cursor, path, outer, found):
    key = key_of(cursor)
    name = (outer["name"] + "::" if outer else "") + (cursor.spelling or "(unnamed)")
    entry = {"name": name, "place": "%s:%d" % (path, cursor.location.line), "fields": 0, "functions": 0,
             "outer": outer and outer["key"], "key": key, "mentions": set()}
    for child in cursor.get_children():
        if child.kind in CLASSES:
            if child.is_definition():
                read_class(child, path, entry, found)
            continue
        entry["fields"] += child.kind == KINDS.FIELD_DECL and not is_function(child.type)
        entry["functions"] += (child.kind in (KINDS.CXX_METHOD, KINDS.FUNCTION_TEMPLATE, KINDS.CONVERSION_FUNCTION) and
                               not child.spelling.startswith("operator"))
        entry["mentions"] |= classes_named(child)
    found.classes.setdefault(key, entry)


def read_declaration(cursor, path, found):
    if cursor.kind in CLASSES:
        if cursor.is_definition():
            read_class(cursor, path, None, found)
    elif cursor.kind in FUNCTIONS:
        parent = cursor.semantic_parent
        if parent.kind not in CLASSES:
            if path.endswith(".h"):
                found.mentioned_by_functions |= classes_named(cursor)
        elif path.endswith(".cpp"):
            found.definitions[key_of(parent)].add(path)
    elif cursor.kind in (KINDS.NAMESPACE, KINDS.LINKAGE_SPEC, KINDS.UNEXPOSED_DECL):
        for child in cursor.get_children():
            read_declaration(child, path, found)


def parse(flags, paths, header=False):
    name = os.path.join(ROOT, "classes_test_unit" + (".h" if header else ".cpp"))  # only in memory
    text = "".join('#include "%s"\n' % os.path.join(ROOT, path) for path in paths)
    language = "-xc++-header" if header else "-xc++"
    return cindex.Index.create(not header).parse(name, [language] + flags, [(name, text)], PARSE)


def read_unit(flags, paths, compiled_headers=None):
    """Reads files as one unit; returns what it found, and which files to read alone: names of theirs clash."""
    unit = parse(flags, paths, header=compiled_headers is not None)
    clashing = {os.path.relpath(message.location.file.name, ROOT) for message in unit.diagnostics
                if message.location.file and re.search("redefinition of|is ambiguous", message.spelling)}
    if compiled_headers:
        unit.save(compiled_headers)
        clashing = set()
    if len(paths) == 1:
        clashing = set()
    found, wanted = Found(), set(paths) - clashing
    for cursor in unit.cursor.get_children():
        path = os.path.relpath(cursor.location.file.name, ROOT) if cursor.location.file else None
        if path in wanted:
            read_declaration(cursor, path, found)
    return found, sorted(clashing & set(paths))


def read_tree():
    """All headers at once, compiled; then the other files with them, many at once, since bodies are skipped. The same
    for the files that include LibTorch, beside that."""
    flags, paths, everything = compiler_flags(), sorted(sources()), Found()
    folders = ["/usr/include"] + [flag[len("-isystem"):] for flag in flags if flag.startswith("-isystem")]

    def there(header):
        return any(os.path.exists(os.path.join(folder, header)) for folder in folders)

    torch, cuda = that_include(TORCH, paths), that_include(CUDA, paths)
    groups = [set(paths) - torch, torch]
    for name, header, files in (("LibTorch", "torch/torch.h", torch), ("CUDA", "cuda.h", cuda)):
        if not there(header):
            print("left out, because %s's headers are absent: %d files" % (name, len(files)))
            groups = [group - files for group in groups]
    groups = [group for group in groups if group]
    processes = min(8, os.cpu_count())
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ProcessPoolExecutor(processes) as pool:
        waiting = []  # flags, files that can be read after this, what is being read
        for number, group in enumerate(groups):
            compiled = os.path.join(folder, "%d.pch" % number)
            with_headers = flags + ["-include-pch", compiled, "-Xclang", "-fallow-pch-with-compiler-errors"]
            headers = sorted(path for path in group if path.endswith(".h"))
            files = sorted(group - set(headers))
            waiting.append((with_headers, files, pool.submit(read_unit, flags, headers, compiled)))
        for used_flags, files, answer in waiting:
            found, clashing = answer.result()
            everything.take(found)
            units = [files[begin:begin + FILES_A_UNIT] for begin in range(0, len(files), FILES_A_UNIT)]
            waiting.extend((used_flags, [], pool.submit(read_unit, used_flags, unit))
                           for unit in units + [[path] for path in clashing])
    return everything


# --------------------------------------------------------------------------------------------------------- counting

def members(found):
    """key -> data members, with those of plain structs that serve the class alone."""
    classes = found.classes

    def outermost(key):
        while classes[key]["outer"] in classes:
            key = classes[key]["outer"]
        return key

    users = collections.defaultdict(set)
    for key, entry in classes.items():
        for mentioned in entry["mentions"] - {key}:
            users[mentioned].add(key)
    serving = collections.defaultdict(set)
    for key, entry in classes.items():
        if entry["functions"] or not entry["fields"]:
            continue
        if entry["outer"]:
            serving[entry["outer"]].add(key)
        elif key not in found.mentioned_by_functions:
            others = {outermost(user) for user in users[key]} - {key}
            if len(others) == 1:
                serving[others.pop()].add(key)

    def count(key, above):
        return classes[key]["fields"] + sum(count(other, above | {key}) for other in serving[key] - above)

    return {key: count(key, {key}) for key in classes}


def seam_of(entry):
    """The .cpp files that the comment above a class names, where it says what separates them."""
    path, line = entry["place"].rsplit(":", 1)
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        lines = file.read().split("\n")[:int(line) - 1]
    while lines and lines[-1].startswith("template"):
        lines.pop()
    while lines and lines[-1].lstrip().startswith("//"):
        match = re.match(r"\s*///? Defined in (\S+\.cpp) and (\S+\.cpp): \S", lines.pop())
        if match:
            return set(match.groups())
    return set()


def spread(found):
    """(class, its .cpp files) of those in more files than are allowed."""
    for key, files in found.definitions.items():
        if key in found.classes and len(files) > 1:
            if len(files) > 2 or {os.path.basename(path) for path in files} != seam_of(found.classes[key]):
                yield found.classes[key], sorted(files)


class Classes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.found = read_tree()

    # The exceptions are exactly the classes above the limit, each with its count.
    def compare(self, counts, places, exceptions, limit, what):
        too_large = ["%s has %d %s (%s)" % (name, count, what, places[name])
                     for name, count in sorted(counts.items()) if count > exceptions.get(name, limit)]
        self.assertEqual(too_large, [], "classes with more than %d %s" % (limit, what))
        too_generous = ["%s: %d, but has %d" % (name, count, counts.get(name, 0))
                        for name, count in sorted(exceptions.items()) if count > counts.get(name, 0) or count <= limit]
        self.assertEqual(too_generous, [], "exceptions that allow more than there is")

    def test_members_are_few(self):
        counts, places = {}, {}
        for key, count in members(self.found).items():
            entry = self.found.classes[key]
            if count > counts.get(entry["name"], 0):
                counts[entry["name"]], places[entry["name"]] = count, entry["place"]
        self.assertGreater(len(counts), 500, "the classes of this tree were not found")
        self.compare(counts, places, MEMBER_EXCEPTIONS, MOST_MEMBERS, "data members")

    def test_classes_are_in_one_file(self):
        counts, places = {}, {}
        for entry, files in spread(self.found):
            counts[entry["name"]], places[entry["name"]] = len(files), " ".join(files)
        self.assertGreater(len(self.found.definitions), 200, "the member functions of this tree were not found")
        self.compare(counts, places, FILE_EXCEPTIONS, 1, ".cpp files")


def print_largest(most):
    found = read_tree()
    for key, count in sorted(members(found).items(), key=lambda item: -item[1])[:most]:
        entry = found.classes[key]
        print("%4d %4d own  %s  %s" % (count, entry["fields"], entry["name"], entry["place"]))
    for entry, files in spread(found):
        print("%4d files  %s  %s" % (len(files), entry["name"], " ".join(files)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default=BUILD)
    parser.add_argument("--list", type=int, metavar="N")
    arguments, rest = parser.parse_known_args()
    BUILD = arguments.build
    if arguments.list:
        print_largest(arguments.list)
    else:
        unittest.main(argv=sys.argv[:1] + rest)
