// Which names a shared library shows. Also for C.
#pragma once

/// In front of every public class and function: all other names stay inside the library.
#define DEEPINFER_API __attribute__((visibility("default")))
