#include "kv/kvk_header.h"

#include <algorithm>
#include <bit>

#include "base/memory.h"
#include "formats/json.h"
#include "kv/scheme.h"

namespace kvasir::kv {
namespace {

using nlohmann::json;

constexpr std::string_view kProvider = "kvasir-kv-1";

json tensor_json(const KvkTensor& tensor) {
  return {{"off", tensor.offset},
          {"bytes", tensor.bytes},
          {"hash", tensor.hash.empty() ? std::string(16, '0') : tensor.hash}};
}

json attachment_json(const KvkAttachment& attachment) {
  json metadata = json::object(), tensors = json::array();
  for (const auto& [key, value] : attachment.metadata)
    std::visit([&, &k = key](const auto& fact) { metadata[k] = fact; }, value);
  for (const KvkAttachment::Tensor& tensor : attachment.tensors) {
    tensors.push_back(tensor_json(tensor.place));
    tensors.back()["shape"] = tensor.shape;
    tensors.back()["dtype"] = name(tensor.dtype);
  }
  return {{"schema", attachment.schema}, {"metadata", std::move(metadata)}, {"tensors", std::move(tensors)}};
}

std::string cache_kind(const GroupGeometry& geometry) {
  if (geometry.mla) return geometry.mla->mtp ? "mtp-mla" : geometry.mla->dsa_dim > 0 ? "mla-dsa" : "mla";
  const std::string rotating = geometry.window ? "rotating" : "";
  const PlaneCodec &k = geometry.codec.k, &v = geometry.codec.v;
  std::string kind = "pair";
  if (geometry.codec.is_plain()) {
    kind = geometry.window ? "" : "kv";
  } else if (k.kind == PlaneCodec::Kind::affine && v.kind == PlaneCodec::Kind::affine) {
    kind = "qkv";
  } else if (k.kind == PlaneCodec::Kind::turbo_key && v.kind == PlaneCodec::Kind::rotated) {
    kind = "turboquant";
  }
  return rotating.empty() || kind.empty() ? rotating + kind : rotating + "-" + kind;
}

// One entry per owner layer: what the groups say, in the words of kv-cache.md 15. A reader compares.
json caches_json(const KvkHeader& header) {
  std::vector<json> by_owner;
  for (const KvkGroup& group : header.groups) {
    const GroupGeometry& geometry = group.geometry;
    json cache{{"kind", cache_kind(geometry)},          {"offset", header.offset()},
               {"min_reusable", header.min_reusable},   {"first_position", group.first},
               {"dtype", name(geometry.codec.k.plain)}, {"codec", describe(geometry.codec)}};
    if (geometry.window) {
      cache["window"] = *geometry.window;
      cache["keep"] = geometry.sinks;
    }
    if (geometry.mla) {
      cache["kv_lora_rank"] = geometry.head_dim_k;
      cache["rope_head_dim"] = geometry.head_dim_v;
      if (geometry.mla->dsa_dim > 0) cache["dsa_head_dim"] = geometry.mla->dsa_dim;
      cache["max_tokens"] = geometry.mla->max_tokens;
    }
    const size_t per_layer = planes(geometry).size();
    for (size_t layer = 0; layer < group.owners.size(); ++layer) {
      const auto owner = static_cast<size_t>(group.owners[layer]);
      if (by_owner.size() <= owner) by_owner.resize(owner + 1);
      by_owner[owner] = cache;
      if (header.layout == KvkHeader::Layout::dense)
        for (size_t p = 0; p < per_layer; ++p)
          by_owner[owner]["tensors"].push_back(tensor_json(group.planes[layer * per_layer + p]));
    }
  }
  json caches = json::array();
  for (json& cache : by_owner) caches.push_back(std::move(cache));
  return caches;
}

[[noreturn]] void corrupt(const std::string& path, std::string_view reason) {
  throw_error(ErrorCode::corrupt_file, "{}: {}", path, reason);
}

// Reads fields of untrusted objects.
class Fields {
 public:
  Fields(const json& object, const std::string& path, std::string where)
      : object_(object), path_(path), where_(std::move(where)) {
    if (!object.is_object()) corrupt(path_, fmt::format("{} is no object", where_));
  }
  const json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) corrupt(path_, fmt::format("{} lacks \"{}\"", where_, name));
    return *found;
  }
  bool has(const char* name) const { return object_.contains(name); }
  std::string text(const char* name, size_t limit = 4096) const {
    const json& value = at(name);
    if (!value.is_string()) corrupt(path_, fmt::format("{}: \"{}\" is no string", where_, name));
    std::string string = value.get<std::string>();
    if (string.size() > limit)
      corrupt(path_,
              fmt::format("{}: \"{}\" has {} bytes, more than {}", where_, name, string.size(), limit));
    return string;
  }
  int64_t integer(const char* name, int64_t low, int64_t high) const {
    const json& value = at(name);
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)))
      corrupt(path_, fmt::format("{}: \"{}\" is no integer", where_, name));
    const int64_t number = value.get<int64_t>();
    if (number < low || number > high)
      corrupt(path_, fmt::format("{}: \"{}\" is {}, outside [{}, {}]", where_, name, number, low, high));
    return number;
  }
  const json& array(const char* name) const {
    const json& value = at(name);
    if (!value.is_array()) corrupt(path_, fmt::format("{}: \"{}\" is no list", where_, name));
    return value;
  }
  const std::string& where() const { return where_; }
  // What nobody here knows may change what the rest means.
  void only(std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : object_.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        throw_error(ErrorCode::unsupported, "{}: {} has an unknown member \"{}\"", path_, where_,
                    printable(key));
  }

 private:
  const json& object_;
  const std::string& path_;
  std::string where_;
};

KvkTensor parse_tensor(const Fields& fields, const std::string& path, bool attached = false) {
  if (attached)
    fields.only({"off", "bytes", "hash", "shape", "dtype"});
  else
    fields.only({"off", "bytes", "hash", "index"});
  KvkTensor tensor;
  tensor.offset = static_cast<uint64_t>(fields.integer("off", 0, INT64_MAX / 4));
  tensor.bytes = static_cast<uint64_t>(fields.integer("bytes", 0, INT64_MAX / 4));
  tensor.hash = fields.text("hash");
  if (tensor.offset % kKvkAlignment != 0)
    corrupt(path,
            fmt::format("{}: offset {} is not aligned to {}", fields.where(), tensor.offset, kKvkAlignment));
  if (tensor.hash.size() != 16 || tensor.hash.find_first_not_of("0123456789abcdef") != std::string::npos)
    corrupt(path, fmt::format("{}: bad hash", fields.where()));
  return tensor;
}

KvkAttachment parse_attachment(const json& object, const std::string& path, const std::string& where) {
  const Fields fields(object, path, where);
  fields.only({"schema", "metadata", "tensors"});
  KvkAttachment attachment{.schema = fields.text("schema", kLongestSchema), .metadata = {}, .tensors = {}};
  if (attachment.schema.empty()) corrupt(path, fmt::format("{} has no schema", where));
  const json& metadata = fields.at("metadata");
  if (!metadata.is_object() || metadata.size() > kMostAttachedFacts)
    corrupt(path, fmt::format("{}: metadata is no object of at most {} members", where, kMostAttachedFacts));
  for (const auto& [key, value] : metadata.items()) {
    Attachment::Value& fact = attachment.metadata[key];
    if (value.is_string())
      fact = value.get<std::string>();
    else if (value.is_boolean())
      fact = value.get<bool>();
    else if (value.is_number_float())
      fact = value.get<double>();
    else if (value.is_number_integer() &&
             !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)))
      fact = value.get<int64_t>();
    else
      corrupt(path,
              fmt::format("{}: metadata \"{}\" is no string, number or boolean", where, printable(key)));
  }
  const json& tensors = fields.array("tensors");
  if (tensors.size() > kMostAttachedTensors)
    corrupt(path, fmt::format("{}: {} tensors", where, tensors.size()));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Fields entry(tensors[i], path, fmt::format("{} tensor {}", where, i));
    KvkAttachment::Tensor tensor{.place = parse_tensor(entry, path, true), .dtype = Dtype::u8, .shape = {}};
    const auto dtype = dtype_from_name(entry.text("dtype"));
    if (!dtype) corrupt(path, fmt::format("{}: unknown dtype", entry.where()));
    tensor.dtype = *dtype;
    for (const json& axis : entry.array("shape")) {
      if (!axis.is_number_integer() || axis.is_number_float())
        corrupt(path, fmt::format("{}: an axis is no integer", entry.where()));
      tensor.shape.push_back(axis.get<int64_t>());
    }
    try {
      if (const uint64_t planned = tensor_bytes(tensor.dtype, tensor.shape); planned != tensor.place.bytes)
        corrupt(path,
                fmt::format("tensor byte-length drift: planned {}, got {}", planned, tensor.place.bytes));
    } catch (const Error& error) {
      corrupt(path, error.what());
    }
    attachment.tensors.push_back(std::move(tensor));
  }
  return attachment;
}

constexpr std::string_view kMlaCodec = "mla";

void parse_mla(const Fields& fields, const std::string& path, GroupGeometry& geometry) {
  geometry.codec = mla_codec();
  geometry.mla = MlaGeometry{.dsa_dim = 0,
                             .max_tokens = static_cast<int32_t>(fields.integer("max_tokens", 1, INT32_MAX)),
                             .mtp = fields.has("mtp")};
  if (fields.has("dsa_head_dim"))
    geometry.mla->dsa_dim = static_cast<int>(fields.integer("dsa_head_dim", 1, 1 << 16));
  if (geometry.mla->mtp && (!fields.at("mtp").is_boolean() || !fields.at("mtp").get<bool>()))
    corrupt(path, fmt::format("{}: \"mtp\" is there and not true", fields.where()));
  if (geometry.mla->mtp && geometry.mla->dsa_dim > 0)
    corrupt(path, fmt::format("{}: a native MTP cache cannot hold DSA state", fields.where()));
  if (geometry.kv_heads != 1 || geometry.window)
    corrupt(path, fmt::format("{}: MLA layers have one head and no window", fields.where()));
  for (const char* plain : {"plain_k", "plain_v"})
    if (fields.text(plain) != name(Dtype::f32))
      corrupt(path, fmt::format("{}: MLA latents are f32", fields.where()));
}

KvkGroup parse_group(const json& object, const std::string& path, size_t index, const KvkHeader& header) {
  const Fields fields(object, path, fmt::format("group {}", index));
  fields.only({"layers", "kv_heads", "head_dim_k", "head_dim_v", "window", "keep", "codec", "plain_k",
               "plain_v", "affine_encoder", "turbo_guard", "dsa_head_dim", "max_tokens", "mtp",
               "first_position", "P", "page_bytes", "pages", "tensors"});
  KvkGroup group;
  GroupGeometry& geometry = group.geometry;
  for (const json& owner : fields.array("layers")) {
    if (!owner.is_number_integer() || owner.get<int64_t>() < 0 || owner.get<int64_t>() > 1 << 16)
      corrupt(path, "a layer index is out of range");
    group.owners.push_back(owner.get<int>());
  }
  if (group.owners.empty()) corrupt(path, fmt::format("{} has no layers", fields.where()));
  geometry.layers = static_cast<int>(group.owners.size());
  geometry.kv_heads = static_cast<int>(fields.integer("kv_heads", 1, 1 << 16));
  geometry.head_dim_k = static_cast<int>(fields.integer("head_dim_k", 1, 1 << 16));
  geometry.head_dim_v = static_cast<int>(fields.integer("head_dim_v", 1, 1 << 16));
  if (fields.has("window")) geometry.window = static_cast<int>(fields.integer("window", 1, INT32_MAX));
  geometry.sinks = static_cast<int>(fields.integer("keep", 0, geometry.window ? *geometry.window - 1 : 0));
  const bool latents = fields.text("codec") == kMlaCodec;
  if (latents != fields.has("max_tokens"))
    corrupt(path, fmt::format("{}: \"max_tokens\" is of MLA layers, and of all of them", fields.where()));
  if (latents) {
    parse_mla(fields, path, geometry);
  } else
    try {
      const auto k = dtype_from_name(fields.text("plain_k")), v = dtype_from_name(fields.text("plain_v"));
      if (!k || !v) corrupt(path, fmt::format("{}: unknown plain dtype", fields.where()));
      const std::string codec = fields.text("codec");
      const size_t slash = codec.find('/');
      const bool turbo = codec.starts_with("turbo:");
      if (turbo && *k != *v) corrupt(path, fmt::format("{}: turbo with two plain dtypes", fields.where()));
      geometry.codec = parse_codec(codec, *k);
      if (!turbo)
        geometry.codec.v = parse_codec(slash == std::string::npos ? codec : codec.substr(slash + 1), *v).v;
      bool gpu_compat = false, guard = true;
      if (fields.has("affine_encoder")) {
        gpu_compat = fields.text("affine_encoder") == "gpu_compat";
        if (!gpu_compat) corrupt(path, fmt::format("{}: unknown affine encoder", fields.where()));
      }
      if (fields.has("turbo_guard")) {
        if (!fields.at("turbo_guard").is_boolean())
          corrupt(path, fmt::format("{}: \"turbo_guard\" is neither true nor false", fields.where()));
        guard = fields.at("turbo_guard").get<bool>();
      }
      for (PlaneCodec* plane : {&geometry.codec.k, &geometry.codec.v}) set_encoder(*plane, gpu_compat, guard);
      if (geometry.codec.k.plain != *k || geometry.codec.v.plain != *v)
        corrupt(path, fmt::format("{}: codec and plain dtypes differ", fields.where()));
    } catch (const Error& error) {
      if (error.code() == ErrorCode::corrupt_file) throw;
      throw_error(ErrorCode::unsupported, "{}: unsupported cache kind ({})", path, error.what());
    }
  for (const auto& [codec, dim] :
       {std::pair{geometry.codec.k, geometry.head_dim_k}, std::pair{geometry.codec.v, geometry.head_dim_v}})
    if (const std::string reason = why_invalid(codec, dim); !reason.empty())
      corrupt(path, fmt::format("{}: {}", fields.where(), reason));
  // Sizes of pages and tensors are products of this, at most 2^16 layers and 2^31 tokens.
  constexpr size_t kMostTokenBytes = size_t{1} << 30;
  size_t token = 0;
  for (const Plane& plane : planes(geometry)) token += static_cast<size_t>(geometry.kv_heads) * plane.bytes;
  if (token > kMostTokenBytes)
    corrupt(path,
            fmt::format("{}: {} bytes for a token of one layer are not possible", fields.where(), token));
  if (geometry.mla && header.offset() > geometry.mla->max_tokens)
    corrupt(path, fmt::format("{}: {} tokens, more than its {}", fields.where(), header.offset(),
                              geometry.mla->max_tokens));
  group.first = static_cast<int32_t>(fields.integer("first_position", 0, header.offset()));
  if (!geometry.window && group.first != 0)
    corrupt(path, fmt::format("{} is full, but begins at {}", fields.where(), group.first));
  // The next query needs its window.
  if (geometry.window &&
      group.first > std::max<int64_t>(0, int64_t{header.offset()} - (*geometry.window - 1)))
    corrupt(path, fmt::format("{} begins at {}, inside its window", fields.where(), group.first));
  if (header.layout == KvkHeader::Layout::pages) {
    geometry.page_tokens = static_cast<int>(fields.integer("P", 1, 1 << 16));
    if (!std::has_single_bit(static_cast<unsigned>(geometry.page_tokens)))
      corrupt(path, fmt::format("{}: P is no power of two", fields.where()));
    const PageForm form = page_form(geometry);
    fields.integer("page_bytes", static_cast<int64_t>(form.page_bytes),
                   static_cast<int64_t>(form.page_bytes));
    for (const json& entry : fields.array("pages")) {
      const Fields page(entry, path, fmt::format("group {} page", index));
      const int64_t number = page.integer("index", 0, INT32_MAX);
      if (!group.pages.empty() && number <= group.pages.back().first)
        corrupt(path, fmt::format("{}: pages are not ascending", fields.where()));
      group.pages.emplace_back(static_cast<uint32_t>(number), parse_tensor(page, path));
      if (group.pages.back().second.bytes != form.page_bytes)
        corrupt(path, fmt::format("tensor byte-length drift: planned {}, got {}", form.page_bytes,
                                  group.pages.back().second.bytes));
    }
    // Exactly the pages that hold live tokens.
    size_t expected = 0;
    const int64_t page = geometry.page_tokens;
    const auto covered = [&](int64_t number) {
      return expected < group.pages.size() && group.pages[expected].first == number ? (++expected, true)
                                                                                    : false;
    };
    const int64_t sink_pages = (std::min<int64_t>(geometry.sinks, header.offset()) + page - 1) / page;
    const int64_t first_page = group.first / page, last_page = (header.offset() - 1) / page;
    for (int64_t i = 0; i < std::min(sink_pages, first_page); ++i)
      if (!covered(i)) corrupt(path, fmt::format("{}: page {} is missing", fields.where(), i));
    for (int64_t i = first_page; i <= last_page; ++i)
      if (!covered(i)) corrupt(path, fmt::format("{}: page {} is missing", fields.where(), i));
    if (expected != group.pages.size())
      corrupt(path, fmt::format("{} has a page without tokens", fields.where()));
  } else {
    geometry.page_tokens = 0;
    const auto list = planes(geometry);
    const json& tensors = fields.array("tensors");
    if (tensors.size() != list.size() * group.owners.size())
      corrupt(path, fmt::format("{}: {} tensors, expected {}", fields.where(), tensors.size(),
                                list.size() * group.owners.size()));
    const int64_t live = header.offset() - group.first + std::min<int64_t>(geometry.sinks, group.first);
    for (size_t i = 0; i < tensors.size(); ++i) {
      group.planes.push_back(
          parse_tensor(Fields(tensors[i], path, fmt::format("group {} tensor {}", index, i)), path));
      const uint64_t planned = static_cast<uint64_t>(geometry.kv_heads) * static_cast<uint64_t>(live) *
                               list[i % list.size()].bytes;
      if (group.planes.back().bytes != planned)
        corrupt(path, fmt::format("tensor byte-length drift: planned {}, got {}", planned,
                                  group.planes.back().bytes));
    }
  }
  return group;
}

}  // namespace

std::string hex64(uint64_t value) {
  return fmt::format("{:016x}", value);
}

PageForm page_form(const GroupGeometry& geometry) {
  PageForm form;
  form.planes = planes(geometry);
  for (const Plane& plane : form.planes) {
    form.plane_at.push_back(form.layer_bytes);
    form.layer_bytes += align_up(
        static_cast<size_t>(geometry.kv_heads) * static_cast<size_t>(geometry.page_tokens) * plane.bytes, 64);
  }
  form.page_bytes = align_up(static_cast<size_t>(geometry.layers) * form.layer_bytes, 256);
  return form;
}

std::string header_text(const KvkHeader& header) {
  json root;
  root["format"] = kKvkVersion;
  root["layout"] = header.layout == KvkHeader::Layout::pages ? "pages" : "dense";
  root["codec_provider"] = kProvider;
  root["created_at"] = header.created_ms;
  root["model_id"] = header.identity.model_id;
  root["config_fingerprint"] = header.identity.config_fingerprint;
  root["weights_digest"] = header.identity.weights_digest;
  root["numerics_id"] = header.identity.numerics_id;
  root["scheme_key"] = header.identity.scheme_key;
  root["tokenizer_hash"] = header.identity.tokenizer_hash;
  root["ns"] = header.identity.ns;
  root["name"] = header.name;
  if (!header.numerics.empty()) root["numerics"] = header.numerics;
  if (header.origin) {
    root["computed_by"] = header.origin.engine;
    root["imported_from"] = header.origin.source;
  }
  root["metadata"] = header.metadata;
  root["tokens"] = header.tokens;
  root["min_reusable"] = header.min_reusable;
  root["stage"] = header.encoded ? "encoded" : "plain";
  json groups = json::array();
  for (const KvkGroup& group : header.groups) {
    const GroupGeometry& geometry = group.geometry;
    json object{{"layers", group.owners},
                {"kv_heads", geometry.kv_heads},
                {"head_dim_k", geometry.head_dim_k},
                {"head_dim_v", geometry.head_dim_v},
                {"keep", geometry.sinks},
                {"codec", describe(geometry.codec)},
                {"plain_k", name(geometry.codec.k.plain)},
                {"plain_v", name(geometry.codec.v.plain)},
                {"first_position", group.first}};
    // Encoders other than the default are named; they hold for both planes.
    if (geometry.codec.k.gpu_compat || geometry.codec.v.gpu_compat) object["affine_encoder"] = "gpu_compat";
    if (!geometry.codec.k.guard || !geometry.codec.v.guard) object["turbo_guard"] = false;
    if (geometry.window) object["window"] = *geometry.window;
    if (geometry.mla) {
      object["max_tokens"] = geometry.mla->max_tokens;
      if (geometry.mla->dsa_dim > 0) object["dsa_head_dim"] = geometry.mla->dsa_dim;
      if (geometry.mla->mtp) object["mtp"] = true;
    }
    if (header.layout == KvkHeader::Layout::pages) {
      object["P"] = geometry.page_tokens;
      object["page_bytes"] = page_form(geometry).page_bytes;
      json pages = json::array();
      for (const auto& [index, tensor] : group.pages) {
        pages.push_back(tensor_json(tensor));
        pages.back()["index"] = index;
      }
      object["pages"] = std::move(pages);
    } else {
      json tensors = json::array();
      for (const KvkTensor& tensor : group.planes) tensors.push_back(tensor_json(tensor));
      object["tensors"] = std::move(tensors);
    }
    groups.push_back(std::move(object));
  }
  root["groups"] = std::move(groups);
  root["caches"] = caches_json(header);
  if (header.state) root["state"] = tensor_json(*header.state);
  for (const KvkAttachment& attachment : header.attachments)
    root["attachments"].push_back(attachment_json(attachment));
  return root.dump(-1, ' ', false, json::error_handler_t::replace);
}

namespace {

void check_caches(const json& stated, const KvkHeader& header, const std::string& path) {
  const json expected = caches_json(header);
  if (stated == expected) return;
  for (const json& cache : stated)
    if (cache.is_object() && cache.contains("kind") && cache["kind"].is_string()) {
      static constexpr std::string_view kKinds[] = {
          "kv",       "qkv",          "pair",          "turboquant",
          "rotating", "rotating-qkv", "rotating-pair", "rotating-turboquant",
          "mla",      "mla-dsa",      "mtp-mla"};
      const std::string kind = cache["kind"].get<std::string>();
      if (std::find(std::begin(kKinds), std::end(kKinds), kind) == std::end(kKinds))
        throw_error(ErrorCode::unsupported, "{}: unsupported cache kind {}", path, printable(kind));
    }
  if (stated.size() != expected.size())
    corrupt(path, fmt::format("{} caches, and the groups have {}", stated.size(), expected.size()));
  for (size_t i = 0; i < expected.size(); ++i)
    if (stated[i] != expected[i])
      corrupt(path, fmt::format("cache {} is not what its group says of the layer", i));
}

}  // namespace

namespace {

// Whose numerics id does not say who computed it, or who has no name, might be taken for what a look-up
// finds.
void parse_origin(const Fields& fields, const std::string& path, KvkHeader& header) {
  const std::string& id = header.identity.numerics_id;
  const size_t plus = id.find('+');
  const std::string computed_by = plus == std::string::npos ? std::string() : id.substr(plus + 1);
  if (fields.has("computed_by") || fields.has("imported_from"))
    header.origin = {.engine = fields.text("computed_by"), .source = fields.text("imported_from")};
  if (header.origin.engine != computed_by)
    corrupt(path, fmt::format("it was computed by '{}', and its numerics_id says '{}'",
                              printable(header.origin.engine), printable(computed_by)));
  if (!header.origin) return;
  if (header.origin.engine != kMlxLm)
    throw_error(ErrorCode::unsupported, "{}: it was computed by '{}', which this build does not know", path,
                printable(header.origin.engine));
  if (header.name.empty())
    corrupt(path, "what somebody else has computed is stored by name, and it has none");
}

}  // namespace

KvkHeader parse_header(std::string_view text, const std::string& path) {
  const json root = formats::parse_json(text, path, 16);
  const Fields fields(root, path, "header");
  KvkHeader header;
  if (const int64_t version = fields.integer("format", 0, INT32_MAX); version != kKvkVersion)
    throw_error(ErrorCode::unsupported, "{}: unsupported formatVersion {}", path, version);
  if (const std::string provider = fields.text("codec_provider"); provider != kProvider)
    throw_error(ErrorCode::unsupported, "{}: cache codec provider mismatch ({}, expected {})", path,
                printable(provider), kProvider);
  fields.only({"format",         "layout",      "codec_provider",
               "created_at",     "model_id",    "config_fingerprint",
               "weights_digest", "numerics_id", "scheme_key",
               "tokenizer_hash", "ns",          "name",
               "numerics",       "metadata",    "tokens",
               "min_reusable",   "stage",       "groups",
               "caches",         "state",       "computed_by",
               "imported_from",  "attachments"});
  const std::string layout = fields.text("layout");
  if (layout != "pages" && layout != "dense")
    throw_error(ErrorCode::unsupported, "{}: unknown layout {}", path, printable(layout));
  header.layout = layout == "pages" ? KvkHeader::Layout::pages : KvkHeader::Layout::dense;
  header.created_ms = fields.integer("created_at", 0, INT64_MAX);
  header.identity = {.model_id = fields.text("model_id"),
                     .config_fingerprint = fields.text("config_fingerprint"),
                     .weights_digest = fields.text("weights_digest"),
                     .numerics_id = fields.text("numerics_id"),
                     .scheme_key = fields.text("scheme_key"),
                     .tokenizer_hash = fields.text("tokenizer_hash"),
                     .ns = fields.text("ns")};
  header.name = fields.text("name");
  parse_origin(fields, path, header);
  if (fields.has("numerics")) header.numerics = fields.text("numerics", size_t{1} << 20);
  header.metadata = fields.text("metadata", size_t{32} << 20);
  const json& tokens = fields.array("tokens");
  if (tokens.empty() || tokens.size() > static_cast<size_t>(INT32_MAX))
    corrupt(path, fmt::format("{} tokens", tokens.size()));
  header.tokens.reserve(tokens.size());
  for (const json& token : tokens) {
    if (!token.is_number_integer() || token.get<int64_t>() < INT32_MIN || token.get<int64_t>() > INT32_MAX)
      corrupt(path, "a token is no 32-bit integer");
    header.tokens.push_back(token.get<int32_t>());
  }
  header.min_reusable = static_cast<int32_t>(fields.integer("min_reusable", INT32_MIN, INT32_MAX));
  if (header.min_reusable < 0 || header.min_reusable > header.offset())
    corrupt(path, "invalid cache minimum reusable offset");
  const std::string stage = fields.text("stage");
  if (stage != "encoded" && stage != "plain") corrupt(path, "unknown stage");
  header.encoded = stage == "encoded";
  const json& groups = fields.array("groups");
  if (groups.size() > 4096) corrupt(path, fmt::format("{} groups", groups.size()));
  std::vector<bool> seen;
  for (size_t g = 0; g < groups.size(); ++g) {
    header.groups.push_back(parse_group(groups[g], path, g, header));
    for (const int owner : header.groups.back().owners) {
      if (seen.size() <= static_cast<size_t>(owner)) seen.resize(static_cast<size_t>(owner) + 1);
      if (seen[static_cast<size_t>(owner)]) corrupt(path, fmt::format("layer {} is in two groups", owner));
      seen[static_cast<size_t>(owner)] = true;
    }
  }
  check_caches(fields.array("caches"), header, path);
  if (fields.has("state")) header.state = parse_tensor(Fields(fields.at("state"), path, "state"), path);
  if (fields.has("attachments")) {
    const json& list = fields.array("attachments");
    if (list.empty() || list.size() > kMostAttachments)
      corrupt(path, fmt::format("{} attachments", list.size()));
    for (size_t i = 0; i < list.size(); ++i)
      header.attachments.push_back(parse_attachment(list[i], path, fmt::format("attachment {}", i)));
    for (size_t i = 1; i < header.attachments.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (header.attachments[i].schema == header.attachments[j].schema)
          corrupt(path, fmt::format("attachments {} and {} have one schema", j, i));
  }
  return header;
}

}  // namespace kvasir::kv
