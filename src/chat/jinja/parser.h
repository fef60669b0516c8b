// Tokens to a tree (unresolved: see resolver.h).
#pragma once

#include <string_view>

#include "chat/jinja/ast.h"
#include "chat/jinja/budget.h"

namespace kvasir::jinja {

// Throws SyntaxFailure or Failure{limit}.
TemplateTree parse_template(std::string_view source, const Limits& limits);

}  // namespace kvasir::jinja
