// Writes the JSON Schemas of all answers into a folder. A build runs it, so that what is installed has them.
#include <cstdio>
#include <exception>

#include "answers/schemas.h"
#include "traces/file/file_io.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("Usage: tencache_schemas FOLDER\n", stderr);
    return 2;
  }
  try {
    for (const tencache::AnswerSchema& one : tencache::answer_schemas()) {
      tencache::write_file(std::string(argv[1]) + "/" + one.name + ".schema.json", one.schema.dump(2) + "\n");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tencache_schemas: %s\n", error.what());
    return 1;
  }
  return 0;
}
