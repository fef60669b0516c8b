#include <algorithm>

#include "chat/jinja/failure.h"
#include "chat/jinja/filters.h"
#include "chat/jinja/operations.h"
#include "chat/jinja/text.h"

namespace kvasir::jinja {

Parameters::Parameters(std::string_view function, Arguments& arguments,
                       std::initializer_list<std::string_view> names, size_t required, size_t positional_only)
    : values_(names.size(), Value::missing()) {
  if (arguments.positional.size() > names.size())
    type_error("{}() takes at most {} argument{}, got {}", function, names.size(),
               names.size() == 1 ? "" : "s", arguments.positional.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
  for (const auto& [key, value] : arguments.keywords) {
    const auto* it = std::find(names.begin(), names.end(), key);
    const auto index = static_cast<size_t>(it - names.begin());
    if (it == names.end() || index < positional_only)
      type_error("{}() got an unexpected keyword argument {}", function, quote(key));
    if (has(index)) type_error("{}() got multiple values for argument {}", function, quote(key));
    values_[index] = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!has(i)) type_error("{}() is missing its argument {}", function, quote(*(names.begin() + i)));
}

bool Parameters::flag(size_t index, bool otherwise) const {
  return has(index) ? truth(values_[index]) : otherwise;
}

}  // namespace kvasir::jinja
