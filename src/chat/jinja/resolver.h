// Decides where every variable lives, folds constants, and binds filters and tests.
//
// jinja2 compiles a template to Python functions; what `set` inside a loop, a macro or a block can see and
// change follows from that. The rules are reproduced here: each scope has its own copy of a name that it
// assigns, which starts from the outer value when the scope is entered; an `if` is no scope; macros see the
// live variables of the scopes around them; names that no scope assigns are looked up in the template's
// context when their scope is entered.
#pragma once

#include "chat/jinja/ast.h"

namespace kvasir::jinja {

// Throws SyntaxFailure.
void resolve(TemplateTree& tree);

}  // namespace kvasir::jinja
