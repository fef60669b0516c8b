#include "program/program.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "base/error.h"
#include "program/executor.h"

namespace kvasir::program {
namespace {

// out[i] = in[i] + add (in == invalid: out[i] = add), split over the team.
class AddOp final : public Op {
 public:
  AddOp(ValueId in, ValueId out, float add, bool in_place = false)
      : Op(in.valid() ? std::vector<ValueId>{in} : std::vector<ValueId>{}, {out}),
        add_(add),
        in_place_(in_place) {}
  std::string_view kind() const override { return "add_constant"; }
  std::string describe() const override { return fmt::format("add={}", add_); }
  int in_place_input() const override { return in_place_ ? 0 : -1; }
  void run(const OpContext& context) const override {
    const ValueId out = outputs()[0];
    const WorkRange range = split_work(context.count(out), context.members, context.member);
    for (int64_t r = range.begin; r < range.end; ++r)
      for (int64_t c = 0; c < context.width(out); ++c)
        context.row<float>(out, r)[c] =
            (inputs().empty() ? 0.0f : context.row<float>(inputs()[0], r)[c]) + add_;
  }

 private:
  float add_;
  bool in_place_;
};

// Counts the rows that it is given by demand; throws after the first piece if told to.
class DemandOp final : public Op {
 public:
  DemandOp(ValueId out, std::atomic<int>& rows, const bool& fails)
      : Op({}, {out}), rows_(rows), fails_(fails) {}
  std::string_view kind() const override { return "demand"; }
  void run(const OpContext& context) const override {
    WorkRange piece{};
    while (context.work.take(context.member, context.count(outputs()[0]), 3, piece)) {
      rows_ += static_cast<int>(piece.end - piece.begin);
      if (fails_) throw std::runtime_error("told to");
    }
  }

 private:
  std::atomic<int>& rows_;
  const bool& fails_;
};

// Programs of an even and an odd number of ops in turn: each op finds its work at the beginning.
TEST(Program, EveryOpFindsAllOfItsWork) {
  std::atomic<int> rows{0};
  bool fails = false;
  const auto program_of = [&](int ops) {
    ProgramBuilder builder;
    ValueId last;
    for (int i = 0; i < ops; ++i) {
      last = builder.value("v", Dtype::f32, Axis::tokens, {16});
      builder.append(std::make_unique<DemandOp>(last, rows, fails));
    }
    builder.output("out", last);
    return std::move(builder).plan({.tokens = 50, .rows = 1, .logits = 1}, 3);
  };
  Program even = program_of(4), odd = program_of(5);
  MemoryLedger ledger;
  Arena arena(1 << 20, &ledger, MemoryCategory::workspace);
  even.allocate(arena);
  odd.allocate(arena);
  StepState step;
  for (int threads : {1, 3}) {
    ThreadTeam team(threads);
    CpuExecutor executor(team);
    for (int round = 0; round < 200; ++round)
      for (Program* program : {&even, &odd, &odd}) {
        step.tokens = 1 + round % 50;
        rows = 0;
        executor.run(*program, step);
        ASSERT_EQ(rows.load(), step.tokens * static_cast<int>(program->ops().size()));
      }
  }
  // A run that an op leaves half done takes nothing from the next one.
  ThreadTeam team(1);
  CpuExecutor executor(team);
  step.tokens = 50;
  for (Program* program : {&odd, &even}) {
    fails = true;
    EXPECT_THROW(executor.run(*program, step), std::runtime_error);
    fails = false;
    rows = 0;
    executor.run(*program, step);
    EXPECT_EQ(rows.load(), 50 * static_cast<int>(program->ops().size()));
  }
}

// Every %number of the text is said what it is, views of columns too.
TEST(Program, TheTextNamesEveryValue) {
  ProgramBuilder builder;
  const ValueId in = builder.input("x", Dtype::f32, Axis::tokens, {32});
  const ValueId left = builder.columns(in, "x.left", 0, {16}),
                right = builder.columns(in, "x.right", 16, {16});
  const ValueId a = builder.value("a", Dtype::f32, Axis::tokens, {2, 16});
  builder.append(std::make_unique<AddOp>(right, a, 1.0f));
  const ValueId tail = builder.columns(a, "a.tail", 24, {8});
  const ValueId b = builder.value("b", Dtype::f32, Axis::tokens, {8}),
                c = builder.value("c", Dtype::f32, Axis::tokens, {16});
  builder.append(std::make_unique<AddOp>(tail, b, 1.0f));
  builder.append(std::make_unique<AddOp>(left, c, 1.0f));
  builder.output("b", b);
  builder.output("c", c);
  const std::string text = std::move(builder).plan({.tokens = 2, .rows = 1, .logits = 1}, 1).dump();
  const auto has = [&](const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  };
  has(fmt::format("%{}:x.right [tokens, 16] f32 = columns from 16 of %{}\n", right.index, in.index));
  has(fmt::format("%{}:x.left [tokens, 16] f32 = columns from 0 of %{}\n", left.index, in.index));
  has(fmt::format("%{}:a.tail [tokens, 8] f32 = columns from 24 of %{}\n", tail.index, a.index));
  for (size_t at = text.find("(%"); at != std::string::npos; at = text.find("(%", at + 1)) {
    const std::string read = text.substr(at + 1, text.find(')', at) - at - 1);
    has(read + ":");
  }
}

TEST(Program, ReusesBuffersOfDeadValues) {
  ProgramBuilder builder;
  std::vector<ValueId> values;
  for (int i = 0; i < 6; ++i) {
    const ValueId v = builder.value("v" + std::to_string(i), Dtype::f32, Axis::tokens, {16});
    builder.append(std::make_unique<AddOp>(i == 0 ? ValueId{} : values.back(), v, 1.0f));
    values.push_back(v);
  }
  builder.output("out", values.back());
  const Program program = std::move(builder).plan({.tokens = 10, .rows = 1, .logits = 1}, 1);
  // A chain needs two buffers of 10 rows of 64 bytes, whatever its length.
  EXPECT_EQ(program.workspace_bytes(), 2u * 10 * 64);
}

TEST(Program, InPlaceChainNeedsOneBuffer) {
  ProgramBuilder builder;
  ValueId last;
  for (int i = 0; i < 4; ++i) {
    const ValueId v = builder.value("v", Dtype::f32, Axis::tokens, {16});
    builder.append(std::make_unique<AddOp>(last, v, 1.0f, i > 0));
    last = v;
  }
  builder.output("out", last);
  Program program = std::move(builder).plan({.tokens = 3, .rows = 1, .logits = 1}, 1);
  EXPECT_EQ(program.workspace_bytes(), 3u * 64);
  MemoryLedger ledger;
  Arena arena(1 << 20, &ledger, MemoryCategory::workspace);
  program.allocate(arena);
  EXPECT_EQ(ledger.bytes(MemoryCategory::workspace), program.workspace_bytes());
  ThreadTeam team(1);
  CpuExecutor executor(team);
  StepState step;
  step.tokens = 3;
  executor.run(program, step);
  EXPECT_EQ(reinterpret_cast<float*>(program.data(program.output("out")))[0], 4.0f);
}

TEST(Program, InPlaceIsRefusedWhileOthersStillRead) {
  ProgramBuilder builder;
  const ValueId a = builder.value("a", Dtype::f32, Axis::tokens, {16});
  const ValueId b = builder.value("b", Dtype::f32, Axis::tokens, {16});
  const ValueId c = builder.value("c", Dtype::f32, Axis::tokens, {16});
  builder.append(std::make_unique<AddOp>(ValueId{}, a, 1.0f));
  builder.append(std::make_unique<AddOp>(a, b, 10.0f, true));
  builder.append(std::make_unique<AddOp>(a, c, 100.0f));
  builder.output("b", b);
  builder.output("c", c);
  Program program = std::move(builder).plan({.tokens = 2, .rows = 1, .logits = 1}, 2);
  Arena arena(1 << 20, nullptr, MemoryCategory::workspace);
  program.allocate(arena);
  ThreadTeam team(2);
  CpuExecutor executor(team);
  StepState step;
  step.tokens = 2;
  executor.run(program, step);
  EXPECT_EQ(reinterpret_cast<float*>(program.data(program.output("b")))[16], 11.0f);
  EXPECT_EQ(reinterpret_cast<float*>(program.data(program.output("c")))[16], 101.0f);
}

TEST(Program, ColumnViewsShareTheirBase) {
  ProgramBuilder builder;
  const ValueId whole = builder.value("whole", Dtype::f32, Axis::tokens, {20});
  const ValueId part = builder.columns(whole, "part", 4, {2, 3});
  const ValueId out = builder.value("out", Dtype::f32, Axis::tokens, {6});
  builder.append(std::make_unique<AddOp>(ValueId{}, whole, 2.0f));
  builder.append(std::make_unique<AddOp>(part, out, 1.0f));
  builder.output("out", out);
  builder.output("whole", whole);
  Program program = std::move(builder).plan({.tokens = 2, .rows = 1, .logits = 1}, 1);
  Arena arena(1 << 20, nullptr, MemoryCategory::workspace);
  program.allocate(arena);
  EXPECT_EQ(program.data(part), program.data(program.output("whole")) + 16);
  EXPECT_EQ(program.values()[1].stride, 128u);
}

// Ops hold on to the description of an input while they make their outputs.
TEST(Program, ADescriptionStaysWhereItIs) {
  ProgramBuilder builder;
  const ValueId first = builder.input("first", Dtype::f32, Axis::tokens, {24});
  const Value& value = builder.at(first);
  for (int i = 0; i < 500; ++i) builder.value(fmt::format("v{}", i), Dtype::f32, Axis::tokens, {8});
  EXPECT_EQ(&value, &builder.at(first));
  EXPECT_EQ(value.name, "first");
  EXPECT_EQ(value.width, 24);
}

TEST(Program, RefusesUseBeforeDefinition) {
  ProgramBuilder builder;
  const ValueId a = builder.value("a", Dtype::f32, Axis::tokens, {4});
  const ValueId b = builder.value("b", Dtype::f32, Axis::tokens, {4});
  builder.append(std::make_unique<AddOp>(a, b, 1.0f));
  EXPECT_THROW(std::move(builder).plan({.tokens = 1, .rows = 1, .logits = 1}, 1), Error);
}

TEST(Program, DumpNamesOpsAndLifetimes) {
  ProgramBuilder builder;
  const ValueId a = builder.value("alpha", Dtype::f32, Axis::logits, {2, 3});
  builder.append(std::make_unique<AddOp>(ValueId{}, a, 0.5f));
  builder.output("out", a);
  const Program program = std::move(builder).plan({.tokens = 1, .rows = 1, .logits = 7}, 1);
  const std::string text = program.dump();
  EXPECT_NE(text.find("add_constant() {add=0.5}"), std::string::npos) << text;
  EXPECT_NE(text.find("alpha [logits, 2, 3] f32  @0+448 alive 0..1"), std::string::npos) << text;
}

}  // namespace
}  // namespace kvasir::program
