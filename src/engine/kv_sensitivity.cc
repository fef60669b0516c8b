#include "engine/kv_sensitivity.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/logit_run.h"
#include "kv/planes.h"
#include "kv/scheme.h"

namespace kvasir::engine {
namespace {

// A row's sums are taken in blocks of this many entries, whatever the team's size.
constexpr size_t kBlock = 8192;

// One row against another, shared by the team.
class RowDivergence {
 public:
  explicit RowDivergence(ThreadTeam* team) : team_(team) {}

  double operator()(std::span<const float> p, std::span<const float> q) {
    const size_t blocks = (p.size() + kBlock - 1) / kBlock;
    sums_.resize(blocks);
    const float p_max = largest(p), q_max = largest(q);
    each(blocks, [&](size_t b) {
      Sums sums;
      for (size_t i = b * kBlock; i < std::min(p.size(), (b + 1) * kBlock); ++i) {
        const float dp = p[i] - p_max, dq = q[i] - q_max;
        const auto weight = static_cast<double>(std::exp(dp));
        sums.p += weight;
        sums.q += static_cast<double>(std::exp(dq));
        sums.difference += weight * (static_cast<double>(dp) - static_cast<double>(dq));
      }
      sums_[b] = sums;
    });
    Sums all;
    for (const Sums& sums : sums_) {
      all.p += sums.p;
      all.q += sums.q;
      all.difference += sums.difference;
    }
    // sum p (log p - log q), with log p = dp - log(sum of exp dp).
    return std::max(0.0, all.difference / all.p - std::log(all.p) + std::log(all.q));
  }

 private:
  struct Sums {
    double p = 0, q = 0, difference = 0;
  };
  static float largest(std::span<const float> row) {
    float most = row[0];
    for (const float x : row) most = std::max(most, x);
    return most;
  }
  template <typename Work>
  void each(size_t blocks, const Work& work) {
    if (team_ == nullptr) {
      for (size_t b = 0; b < blocks; ++b) work(b);
      return;
    }
    team_->run([&](int member) {
      for (size_t b = static_cast<size_t>(member); b < blocks; b += static_cast<size_t>(team_->size()))
        work(b);
    });
  }
  ThreadTeam* team_;
  std::vector<Sums> sums_;
};

// A codec that one plane of a layer can take: the pair has it there and f32 in the other plane.
struct PlaneChoice {
  std::string spec;
  kv::CodecPair codec;
  bool keys = false;
  size_t bytes = 0;  // of this plane
};

// In the order of the list, of each first keys, then values.
std::vector<PlaneChoice> plane_choices(const kv::GroupGeometry& geometry, int layer,
                                       std::span<const std::string> plane_codecs, Dtype plain) {
  std::vector<PlaneChoice> choices;
  bool some[2] = {};
  for (const std::string& spec : plane_codecs)
    for (const bool keys : {true, false}) {
      if (!keys && spec.starts_with("turbokey:")) continue;
      const kv::CodecPair codec = kv::parse_codec(keys ? spec + "/f32" : "f32/" + spec, plain, spec);
      const kv::PlaneCodec& plane = keys ? codec.k : codec.v;
      const int dim = keys ? geometry.head_dim_k : geometry.head_dim_v;
      if (!kv::why_invalid(plane, dim).empty()) continue;
      some[keys] = true;
      choices.push_back(
          {spec, codec, keys, static_cast<size_t>(geometry.kv_heads) * kv::plane_bytes(plane, dim)});
    }
  if (!some[0] || !some[1])
    throw_error(ErrorCode::unsupported, "layer {} can take none of the codecs that are to be measured",
                layer);
  return choices;
}

kv::Workload workload(Engine& engine, int64_t tokens) {
  return {.context = tokens, .batch = 1, .chunk = engine.model().maxima().tokens, .checkpoints = 0};
}

}  // namespace

std::vector<std::string> default_plane_codecs() {
  return {"bf16", "f16", "rot:q8_0", "q8_0", "rot:q6_0", "q6_0", "rot:q5_0", "rot:q4_0", "rot:q3_0", "rot:2"};
}

double kl_divergence(std::span<const float> p_logits, std::span<const float> q_logits) {
  return RowDivergence(nullptr)(p_logits, q_logits);
}

std::vector<MeasuredCodec> frontier(std::vector<MeasuredCodec> pairs) {
  std::stable_sort(pairs.begin(), pairs.end(), [](const MeasuredCodec& a, const MeasuredCodec& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.kl < b.kl;
  });
  std::vector<MeasuredCodec> kept;
  for (MeasuredCodec& pair : pairs)
    if (kept.empty() || pair.kl < kept.back().kl) kept.push_back(std::move(pair));
  std::reverse(kept.begin(), kept.end());
  return kept;
}

size_t sensitivity_bytes(Engine& engine, int64_t tokens) {
  const models::ModelInfo& info = engine.model().info();
  return static_cast<size_t>(tokens) * static_cast<size_t>(info.vocab) * sizeof(float) +
         kv::projected_bytes(engine.model().memory().kv_shape, kv::layouts_for(info.isa),
                             workload(engine, tokens))
             .bytes;
}

size_t least_bytes(Engine& engine, std::span<const std::string> plane_codecs, Dtype plain) {
  size_t total = 0;
  for (const models::KvGroup& group : engine.model().groups()) {
    size_t least[2] = {SIZE_MAX, SIZE_MAX};
    for (const PlaneChoice& c : plane_choices(group.geometry, group.layers.front(), plane_codecs, plain))
      least[c.keys] = std::min(least[c.keys], c.bytes);
    total += least[0] + least[1];
  }
  return total;
}

namespace {

// The distributions of the f32 cache, and what others are compared to them.
class Reference {
 public:
  Reference(Engine& engine, std::span<const int32_t> ids, const std::function<bool()>& cancelled)
      : engine_(engine),
        vocab_(static_cast<size_t>(engine.model().info().vocab)),
        arena_(ids.size() * vocab_ * sizeof(float), &engine.ledger(), MemoryCategory::workspace),
        divergence_(&engine.executor().team()) {
    for (const kv::LayerGroup& group : engine.model().memory().kv_shape.groups)
      KVASIR_CHECK(group.owners.size() == 1 && group.geometry.codec.is_plain() &&
                   group.geometry.codec.k.plain == Dtype::f32);
    logits_ = reinterpret_cast<float*>(arena_.allocate(ids.size() * vocab_ * sizeof(float)));
    run_.ids = ids;
    run_.cancelled = cancelled;
    Context context = engine.new_context();
    run_.row = &context;
    run_.visit = [&](int64_t position, const float* row) {
      std::copy(row, row + vocab_, logits_ + static_cast<size_t>(position) * vocab_);
    };
    run_logits(engine, run_);
  }

  struct Loss {
    double kl = 0, top1 = 0;
  };
  // Of a cache with these codecs, [groups].
  Loss operator()(std::span<const kv::CodecPair> codecs) {
    kv::CacheShape shape = engine_.model().memory().kv_shape;
    for (size_t g = 0; g < shape.groups.size(); ++g) shape.groups[g].geometry.codec = codecs[g];
    const kv::LayoutFactory layouts = kv::layouts_for(engine_.model().info().isa);
    const auto tokens = static_cast<int64_t>(run_.ids.size());
    kv::KvCache cache(shape, layouts, kv::plan_capacity(shape, layouts, workload(engine_, tokens)),
                      &engine_.ledger());
    Context context{cache.create(), {}};
    Loss sum;
    run_.row = &context;
    run_.visit = [&](int64_t position, const float* row) {
      const std::span<const float> want(logits_ + static_cast<size_t>(position) * vocab_, vocab_);
      const std::span<const float> got(row, vocab_);
      sum.kl += divergence_(want, got);
      sum.top1 += std::max_element(want.begin(), want.end()) - want.begin() ==
                  std::max_element(got.begin(), got.end()) - got.begin();
    };
    run_logits(engine_, run_);
    return {sum.kl / static_cast<double>(tokens), sum.top1 / static_cast<double>(tokens)};
  }

  std::vector<kv::CodecPair> f32() const {
    std::vector<kv::CodecPair> codecs;
    for (const kv::LayerGroup& group : engine_.model().memory().kv_shape.groups)
      codecs.push_back(group.geometry.codec);
    return codecs;
  }

 private:
  Engine& engine_;
  size_t vocab_;
  Arena arena_;
  float* logits_ = nullptr;
  RowDivergence divergence_;
  LogitRun run_;
};

}  // namespace

std::vector<MeasuredScheme> measure_kv_codecs(Engine& engine, std::span<const int32_t> ids,
                                              std::span<const std::string> specs, Dtype plain,
                                              const std::function<void(double done)>& progress,
                                              const std::function<bool()>& cancelled) {
  const std::vector<kv::LayerGroup>& groups = engine.model().memory().kv_shape.groups;
  bool full = false, windowed = false;
  for (const kv::LayerGroup& group : groups) (group.geometry.window ? windowed : full) = true;
  std::vector<std::string> kinds = {"all"};
  if (full && windowed) kinds.insert(kinds.end(), {"full", "windowed"});
  std::vector<kv::CodecPair> chosen;
  for (const std::string& spec : specs) {
    const kv::CodecPair& codec = chosen.emplace_back(kv::parse_codec(spec, plain));
    for (size_t g = 0; g < groups.size(); ++g)
      for (const auto& [plane, dim] : {std::pair{codec.k, groups[g].geometry.head_dim_k},
                                       std::pair{codec.v, groups[g].geometry.head_dim_v}})
        if (const std::string reason = kv::why_invalid(plane, dim); !reason.empty())
          throw_error(ErrorCode::unsupported, "{}: layer {} cannot take it: {}", spec,
                      engine.model().groups()[g].layers.front(), reason);
  }
  Reference reference(engine, ids, cancelled);
  std::vector<MeasuredScheme> measured;
  for (size_t s = 0; s < specs.size(); ++s)
    for (const std::string& kind : kinds) {
      MeasuredScheme scheme{specs[s], kind};
      std::vector<kv::CodecPair> codecs = reference.f32();
      for (size_t g = 0; g < groups.size(); ++g) {
        if (kind != "all" && (kind == "windowed") != groups[g].geometry.window.has_value()) continue;
        codecs[g] = chosen[s];
        kv::GroupGeometry geometry = groups[g].geometry;
        geometry.codec = codecs[g];
        scheme.bytes += kv::token_bytes(geometry);
      }
      const auto loss = reference(codecs);
      scheme.kl = loss.kl;
      scheme.top1 = loss.top1;
      measured.push_back(std::move(scheme));
      if (progress)
        progress(static_cast<double>(measured.size()) / static_cast<double>(specs.size() * kinds.size()));
    }
  return measured;
}

std::vector<LayerSensitivity> measure_kv_sensitivity(Engine& engine, std::span<const int32_t> ids,
                                                     std::span<const std::string> plane_codecs, Dtype plain,
                                                     const std::function<void(double done)>& progress,
                                                     const std::function<bool()>& cancelled) {
  const models::Model& model = engine.model();
  const kv::CacheShape& shape = model.memory().kv_shape;
  Reference reference(engine, ids, cancelled);
  const auto measure = [&](size_t layer, const kv::CodecPair& codec) {
    std::vector<kv::CodecPair> codecs = reference.f32();
    codecs[layer] = codec;
    return reference(codecs).kl;
  };

  std::vector<LayerSensitivity> layers;
  for (size_t g = 0; g < shape.groups.size(); ++g) {
    LayerSensitivity found;
    found.layer = model.groups()[g].layers.front();
    const std::vector<PlaneChoice> choices =
        plane_choices(shape.groups[g].geometry, found.layer, plane_codecs, plain);
    for (size_t c = 0; c < choices.size(); ++c) {
      (choices[c].keys ? found.keys : found.values)
          .push_back({choices[c].spec, choices[c].bytes, measure(g, choices[c].codec)});
      if (progress)
        progress((static_cast<double>(g) + static_cast<double>(c + 1) / static_cast<double>(choices.size())) /
                 static_cast<double>(shape.groups.size()));
    }
    for (const MeasuredCodec& k : found.keys)
      for (const MeasuredCodec& v : found.values)
        found.pairs.push_back(
            {k.codec == v.codec ? k.codec : k.codec + "/" + v.codec, k.bytes + v.bytes, k.kl + v.kl});
    found.pairs = frontier(std::move(found.pairs));
    layers.push_back(std::move(found));
  }
  return layers;
}

}  // namespace kvasir::engine
