#include "program/program.h"

#include <gtest/gtest.h>

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
