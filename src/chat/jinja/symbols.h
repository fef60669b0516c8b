// Which names a scope of a template reads and assigns: jinja2's rules, from which the resolver makes slots.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja/ast.h"

namespace kvasir::jinja {

struct FunctionState {
  Function* function;
  FunctionState* parent;
  std::map<std::pair<int, std::string>, int> slots;
  int loops = 0;  // loops around the statement that is being resolved

  int slot(int level, const std::string& name) {
    const auto [it, added] = slots.try_emplace({level, name}, function->slot_count);
    if (added) ++function->slot_count;
    return it->second;
  }
};

struct Symbols;

struct Load {
  enum class From { parameter, resolve, alias, undefined } from;
  const Symbols* source = nullptr;  // alias
};

// The names of one scope, as far as they were referenced or assigned in it.
struct Symbols {
  const Symbols* parent = nullptr;
  int level = 0;
  FunctionState* function = nullptr;
  std::set<std::string> references;
  std::map<std::string, Load> loads;
  std::set<std::string> stores;

  const Symbols* find(const std::string& name) const {
    for (const Symbols* scope = this; scope != nullptr; scope = scope->parent)
      if (scope->references.contains(name)) return scope;
    return nullptr;
  }

  void define(const std::string& name, Load load) {
    references.insert(name);
    loads[name] = load;
  }

  void declare_parameter(const std::string& name) {
    stores.insert(name);
    define(name, {Load::From::parameter});
  }

  void load(const std::string& name) {
    if (find(name) == nullptr) define(name, {Load::From::resolve});
  }

  void store(const std::string& name) {
    stores.insert(name);
    if (references.contains(name)) return;
    const Symbols* outer = parent == nullptr ? nullptr : parent->find(name);
    if (outer != nullptr)
      define(name, {Load::From::alias, outer});
    else
      define(name, {Load::From::undefined});
  }

  // Names assigned in only some branches of an `if` keep their outer value in the others.
  void merge_branches(const std::vector<Symbols>& branches) {
    std::set<std::string> assigned;
    for (const Symbols& branch : branches)
      for (const std::string& name : branch.stores)
        if (!stores.contains(name)) assigned.insert(name);
    for (const Symbols& branch : branches) {
      references.insert(branch.references.begin(), branch.references.end());
      for (const auto& [name, load] : branch.loads) loads[name] = load;
      stores.insert(branch.stores.begin(), branch.stores.end());
    }
    for (const std::string& name : assigned) {
      const Symbols* outer = parent == nullptr ? nullptr : parent->find(name);
      loads[name] = outer != nullptr ? Load{Load::From::alias, outer} : Load{Load::From::resolve};
    }
  }
};

// Records what a scope reads and assigns, in the order in which jinja2 looks. Inner scopes are not entered.
void record_symbols(Symbols& symbols, const Body& body);
// `as_parameter`: the names are parameters of the scope (the target of a loop).
void record_symbols(Symbols& symbols, const Expression& expression, bool as_parameter = false);

// Those of `names` that the body reads before it assigns them.
std::set<std::string> find_undeclared(const Body& body, std::set<std::string> names);

}  // namespace kvasir::jinja
