#include "batch_block.h"

#include <algorithm>
#include <utility>

namespace pysampler::bindings {
namespace {

constexpr std::int64_t kNever = std::int64_t{1} << 62;  // more steps than any episode has

Ids ids_of(const std::vector<std::int32_t>& places) {
    return Ids(static_cast<py::ssize_t>(places.size()), places.data());
}

std::vector<std::int32_t> places_of(const Ids& ids) {
    return {ids.data(), ids.data() + ids.size()};
}

bool is_array(const py::object& value) { return py::isinstance<py::array>(value); }

py::object taken(const py::object& array, const Ids& rows) {
    return checked(PyObject_GetItem(array.ptr(), rows.ptr()));
}

// Infos, which must be arrays with a row for each env.
py::dict infos_of(const char* method, const py::object& infos, std::size_t rows) {
    if (!PyDict_Check(infos.ptr())) {
        throw py::type_error(std::string(method) + " returned infos of " +
                             Py_TYPE(infos.ptr())->tp_name + ", expected a dict of arrays");
    }
    const auto found = py::reinterpret_borrow<py::dict>(infos);
    for (const auto& [key, value] : found) {
        py::object got = py::type::handle_of(value).attr("__name__");
        if (py::isinstance<py::array>(value)) {
            const py::tuple shape = value.attr("shape");
            if (!shape.empty() && shape[0].cast<std::size_t>() == rows) continue;
            got = py::str("an array of shape {}").format(shape);
        }
        const py::str text(
            "{} returned info {!r} as {}, expected an array with a row for each of "
            "the {} envs");
        throw py::value_error(text.format(method, key, got, rows).cast<std::string>());
    }
    return found;
}

// The infos of one env: numbers and arrays.
py::dict row_of(const py::dict& infos, std::int32_t row) {
    py::dict one;
    for (const auto& [key, array] : infos) {
        const py::object value = array[py::int_(row)];
        one[key] = array.attr("ndim").cast<int>() > 1 ? value.attr("copy")() : value;
    }
    return one;
}

}  // namespace

BatchBlock::BatchBlock(const py::object& stepper, std::size_t count, std::size_t first,
                       const std::shared_ptr<Meter>& meter, std::optional<std::int64_t> limit,
                       bool is_inline)
    : FrameBlock(count, first, meter, is_inline),
      stepper_(stepper),
      errors_(stepper.attr("errors")),
      steps_ended_(stepper.attr("steps_ended").cast<bool>()),
      checks_(stepper.attr("checks").cast<bool>()),
      kernel_(stepper.attr("kernel")),
      elapsed_(static_cast<py::ssize_t>(count)),
      rows_(first, count, meter, elapsed_, limit.value_or(kNever)),
      begun_(count) {
    std::fill_n(elapsed_.mutable_data(), count, 0);
    if (!kernel_.is_none()) native_ = kernel_.cast<Classic*>();
}

void BatchBlock::use(const py::object& frames, const std::shared_ptr<Infos>& infos,
                     const std::string& autoreset, const std::string& keep) {
    FrameBlock::use(frames, infos, autoreset, keep);
    rows_.use(frames, infos, keep_ == KeepInfos::kAll);
}

bool BatchBlock::all_begun() const {
    for (std::size_t i = 0; i < count_; ++i) {
        if (!begun_[i] || resting_[i]) return false;
    }
    return true;
}

// -- the stepper --

template <class... Arguments>
py::object BatchBlock::ask(const py::str& method, const Arguments&... arguments) {
    PyObject* call[] = {stepper_.ptr(), arguments.ptr()...};
    py::object results = checked(called([&] {
        return PyObject_VectorcallMethod(method.ptr(), call, 1 + sizeof...(arguments), nullptr);
    }));
    take_errors();
    return results;
}

void BatchBlock::take_errors() {
    if (errors_.empty()) return;
    for (const py::handle one : errors_) {
        const auto [i, error] = one.cast<std::pair<std::size_t, py::object>>();
        leave(kError, i, error);
    }
    errors_.attr("clear")();
}

// `dropped` is a mask of envs whose results are not used; or None.
BatchBlock::Advanced BatchBlock::advance(const py::object& ids, const py::object& actions,
                                         const py::object& dropped) {
    if (native_ != nullptr) {
        const auto some = ids.is_none() ? std::nullopt : std::optional<Ids>(ids);
        const py::object ends = native_->step(some, actions);
        // Without results, an action is invalid: Python raises the error, or replaces it.
        if (!ends.is_none())
            return {native_->observe(some), ends[py::int_(0)], ends[py::int_(1)], {}};
    }
    const py::tuple results = ask(advance_, ids, actions, dropped);
    const std::size_t rows = ids.is_none() ? count_ : py::len(ids);
    return {results[0], results[1], results[2], infos_of("step", results[3], rows)};
}

// -- steps --

bool BatchBlock::step_with(std::uint32_t frame, const py::object& actions) {
    if (has_left(frame, actions)) {  // a loop in C++ may still hold this block
        return actions.is_none() ? successor_.cast<Block*>()->step(frame)
                                 : successor_.attr("step")(frame, actions).cast<bool>();
    }
    in_chunk_ = false;
    return step_now(frame, actions);
}

void BatchBlock::start(std::uint32_t frame) {
    begin(frame);
    rows_.start();
    if (!errors_.empty()) errors_.attr("clear")();  // of a call that raised
}

bool BatchBlock::step_now(std::uint32_t frame, const py::object& actions) {
    start(frame);
    const auto step = [&] {
        const py::object given = actions.is_none() ? actions_in(frame) : actions;
        const bool all = is_array(given) && idle_.empty() && !fresh() && all_begun();
        if (all && !ended_.any()) {
            step_rows(frame, std::nullopt, given);
        } else if (all && steps_ended_ &&
                   std::memchr(ended_.array().data(), 0, count_) != nullptr) {
            step_and_reset(frame, given);
        } else {
            step_some(frame, given);
        }
    };
    guarded(step, [&](const py::object& error) { report(error); });
    return done(frame);
}

// Reports an exception as the error of one env, after which no env has results.
void BatchBlock::report(const py::object& error) {
    failed_ = true;
    std::size_t at = 0;
    const py::module_ errors = py::module_::import("pysampler.envs._errors");
    if (py::isinstance(error, errors.attr("RowError"))) {
        const py::object row = error.attr("row");
        // If it is of another type, or of no env, the first one is blamed.
        const bool known = PyLong_Check(row.ptr()) && py::int_(0) <= row && row < py::int_(count_);
        if (known) at = row.cast<std::size_t>();
    }
    leave(kError, at, error);
    for (std::size_t i = 0; i < count_; ++i) {
        if (i != at) leave(kNoResults, i, py::none());
    }
}

bool BatchBlock::done(std::uint32_t frame) {
    meter_->idle(now_ns());
    for (std::size_t i = 0; !options_.empty() && i < count_; ++i) write_options_version(frame, i);
    return !overflow_.empty();
}

// The actions in a frame, of the type that the caller passed. It is a copy: envs may keep their
// actions or write to them.
py::object BatchBlock::actions_in(std::uint32_t frame) {
    use_action_types(frame);
    return action_leaves_[0].load_all(Selection(Rows{frame, first_, count_}));
}

// Steps some envs, or all, and writes their results.
void BatchBlock::step_rows(std::uint32_t frame, const std::optional<Ids>& ids,
                           const py::object& actions) {
    const Advanced results = advance(ids ? py::object(*ids) : py::none(), actions, py::none());
    const auto [ended, rest] =
        rows_.write(frame, ids, results.observations, results.rewards, results.terminated,
                    results.infos, py::none(), py::none());
    Places rows;
    if (!ended.is_none()) rows = places_of(ended.cast<Ids>());
    if (!rest.is_none()) {
        Places envs, going;
        const std::size_t count = ids ? static_cast<std::size_t>(ids->size()) : count_;
        auto final = rows.begin();
        for (std::size_t k = 0; k < count; ++k) {
            const auto row = static_cast<std::int32_t>(k);
            if (autoreset_ == Autoreset::kSameStep && final != rows.end() && *final == row) {
                ++final;  // its infos become final
                continue;
            }
            envs.push_back(ids ? ids->at(row) : row);
            going.push_back(row);
        }
        leave_infos(envs, rest, going);
    }
    if (rows.empty()) return;
    const Ids places = ended.cast<Ids>();
    end_some(frame, ids ? taken(*ids, places).cast<Ids>() : places, places, results);
}

// Steps all envs and discards the steps of those that had ended, which are reset instead.
void BatchBlock::step_and_reset(std::uint32_t frame, const py::object& actions) {
    Places going, resets;
    for (std::size_t i = 0; i < count_; ++i) {
        (ended_[i] ? resets : going).push_back(static_cast<std::int32_t>(i));
    }
    const py::object dropped = ended_.array().attr("copy")();
    const Advanced results = advance(py::none(), actions, dropped);
    const auto [ended, rest] =
        rows_.write(frame, std::nullopt, results.observations, results.rewards, results.terminated,
                    results.infos, py::none(), dropped);
    if (!rest.is_none()) leave_infos(going, rest, going);
    reset_envs(frame, resets, nullptr, kBegun);  // which clears the ends of these envs
    if (ended.is_none()) return;
    Places rows;
    for (const std::int32_t row : places_of(ended.cast<Ids>())) {
        if (!std::binary_search(resets.begin(), resets.end(), row)) rows.push_back(row);
    }
    if (!rows.empty()) end_some(frame, ids_of(rows), ids_of(rows), results);
}

// Steps the envs that have begun an episode, and resets those whose episodes have ended.
void BatchBlock::step_some(std::uint32_t frame, const py::object& actions) {
    std::vector<bool> none = idle_;
    none.resize(count_);
    Places lost, resets;
    for (std::size_t i = 0; i < count_; ++i) {
        if (!fresh_[i]) continue;
        write_lost(frame, i);
        none[i] = true;
        lost.push_back(static_cast<std::int32_t>(i));
    }
    if (autoreset_ == Autoreset::kSameStep) reset_envs(frame, lost, nullptr, std::nullopt);
    std::vector<bool> reset(count_);
    for (std::size_t i = 0; i < count_; ++i) {
        if (!ended_[i] || none[i]) continue;
        reset[i] = true;
        resets.push_back(static_cast<std::int32_t>(i));
    }
    reset_envs(frame, resets, nullptr, kBegun);
    Places steps;
    for (std::size_t i = 0; i < count_; ++i) {
        if (none[i] || resting_[i]) continue;
        if (!begun_[i]) {
            leave(kError, i,
                  py::module_::import("gymnasium.error")
                      .attr("ResetNeeded")("Cannot call env.step() before calling env.reset()"));
        } else if (!reset[i]) {
            steps.push_back(static_cast<std::int32_t>(i));
        }
    }
    if (steps.empty()) return;
    const Ids ids = ids_of(steps);
    if (is_array(actions)) {
        step_rows(frame, ids, taken(actions, ids));
        return;
    }
    const py::list alike = stepper_.attr("alike")(ids, actions);
    take_errors();
    for (const py::handle one : alike) {
        const auto [some, chosen] = one.cast<std::pair<Ids, py::object>>();
        step_rows(frame, some, chosen);
    }
}

// Handles the episodes that ended in a step: those of `ended`, which are these rows of its results.
void BatchBlock::end_some(std::uint32_t frame, const Ids& ended, const Ids& rows,
                          const Advanced& results) {
    const Places envs = places_of(ended);
    if (autoreset_ == Autoreset::kSameStep) {
        rows_.write_finals(frame, ended, rows, results.observations, kFinalHere);
        if (keep_ != KeepInfos::kNone) {
            const py::object rest = rows_.write_infos(frame, ended, rows, results.infos, true);
            if (!rest.is_none()) leave_infos(envs, rest, places_of(rows), true);
        }
        reset_envs(frame, envs, nullptr, std::nullopt);
        return;
    }
    if (autoreset_ == Autoreset::kNextStep) {
        for (const std::int32_t i : envs) ended_[static_cast<std::size_t>(i)] = true;
    }
    if (keep_ == KeepInfos::kFinal) {
        const py::object rest = rows_.write_infos(frame, ended, rows, results.infos, false);
        if (!rest.is_none()) leave_infos(envs, rest, places_of(rows));
    }
}

// Makes the chunk step by step, with fewer and fewer envs.
bool BatchBlock::step_chunk(std::uint32_t frame, std::uint32_t steps, bool last) {
    for (std::uint32_t k = 0; k < steps; ++k) {
        if (has_left(frame + k, py::none())) {
            return successor_.cast<Block*>()->step_chunk(frame, steps, last);
        }
    }
    struct Chunk {
        BatchBlock& block;
        explicit Chunk(BatchBlock& of) : block(of) {
            block.in_chunk_ = true;
            block.overflow_ = py::list();
        }
        ~Chunk() {
            block.idle_.clear();
            block.in_chunk_ = false;
            block.step_ = 0;
        }
    } const chunk(*this);
    std::vector<bool> stopped(count_);
    for (std::size_t i = 0; i < count_; ++i) stopped[i] = resting_[i];
    std::size_t seen = 0;  // of the overflow
    for (step_ = 0; step_ < steps; ++step_) {
        const std::uint32_t at = frame + step_;
        const bool any = std::find(stopped.begin(), stopped.end(), true) != stopped.end();
        idle_ = any ? stopped : std::vector<bool>();
        step_now(at, py::none());
        for (std::size_t i = 0; i < count_; ++i) {
            const std::size_t env = first_ + i;
            if (!idle_.empty() && idle_[i]) {
                clear_results(at, i);
                has_final_.mutable_at(at, env) = kSkipped;
            }
            if (failed_ || terminated_.at(at, env) || truncated_.at(at, env) ||
                has_final_.at(at, env) == kBegun) {
                stopped[i] = true;
            }
        }
        for (; seen < overflow_.size(); ++seen) {
            const py::tuple one = overflow_[seen];
            if (one[0].cast<int>() == kError) stopped[one[1].cast<std::size_t>() - first_] = true;
        }
    }
    return !overflow_.empty();
}

void BatchBlock::set_stopped(const std::optional<py::array_t<bool>>& envs) {
    idle_.clear();
    if (envs) idle_.assign(envs->data(), envs->data() + count_);
}

// -- resets --

bool BatchBlock::reset(std::uint32_t frame, const py::list& calls) {
    if (const py::object why = why_not_reset(calls); !why.is_none()) {
        const py::object leave = py::getattr(py::cast(this), "leave", py::none());
        if (!leave.is_none()) return leave(why).attr("reset")(frame, calls).cast<bool>();
    }
    in_chunk_ = false;
    start(frame);
    std::vector<bool> lost(count_);
    for (std::size_t i = 0; i < count_; ++i) {
        lost[i] = fresh_[i];
        if (lost[i]) mark_lost(frame, i);
    }
    const auto reset = [&] {
        Places left, envs;
        std::vector<py::tuple> chosen;
        for (std::size_t i = 0; i < count_; ++i) {
            const py::object call = calls[i];
            const auto place = static_cast<std::int32_t>(i);
            if (!call.is_none() || lost[i]) {
                envs.push_back(place);
                chosen.push_back(call.is_none() ? py::make_tuple(py::none(), py::none())
                                                : py::tuple(call));
                continue;
            }
            if (begun_[i]) {
                left.push_back(place);
            } else {
                leave(kUnseen, i, py::none());
            }
            write_left_out(frame, i);
        }
        if (!left.empty()) {
            const Ids ids = ids_of(left);
            rows_.write_observations(frame, ids, ask(observe_, ids).cast<py::array>());
        }
        reset_envs(frame, envs, &chosen, 0);
        for (std::size_t i = 0; i < count_; ++i) {
            if (lost[i]) has_final_.mutable_at(frame, first_ + i) = kLost;
        }
    };
    guarded(reset, [&](const py::object& error) { report(error); });
    return done(frame);
}

// Begins episodes of some envs, and writes their first observations. `calls` has the seed and
// options of each; without, they get none. `has_final` is what takes the place of the results of a
// step; without, a step has just written them.
void BatchBlock::reset_envs(std::uint32_t frame, Places envs, const std::vector<py::tuple>* calls,
                            std::optional<std::uint8_t> has_final) {
    bool with_options = false;
    if (calls != nullptr || !options_.empty() || !all_begun() || !seeds_.empty()) {
        envs = prepared(envs, calls, with_options);
    }
    if (envs.empty()) return;
    const Ids ids = ids_of(envs);
    const py::tuple results = begin_envs(ids, with_options);
    for (const std::int32_t place : envs) {
        const auto i = static_cast<std::size_t>(place);
        begun_[i] = true;
        resting_[i] = ended_[i] = false;
    }
    const py::object rest =
        rows_.write_resets(frame, ids, results[0].cast<py::array>(), results[1], has_final);
    if (rest.is_none()) return;
    Places rows(envs.size());
    for (std::size_t k = 0; k < rows.size(); ++k) rows[k] = static_cast<std::int32_t>(k);
    leave_infos(envs, rest, rows);
}

// Begins episodes of some envs; returns their observations and infos.
py::tuple BatchBlock::begin_envs(const Ids& ids, bool with_options) {
    if (native_ == nullptr || with_options) {
        const py::tuple results = ask(begin_, ids);
        return py::make_tuple(results[0], infos_of("reset", results[1], py::len(ids)));
    }
    native_->begin(ids, stepper_.attr("rngs"));
    return py::make_tuple(native_->observe(ids), py::dict());
}

// Seeds envs and sets their options; returns those whose seed and options were valid.
BatchBlock::Places BatchBlock::prepared(const Places& envs, const std::vector<py::tuple>* calls,
                                        bool& with_options) {
    py::list seeds, options;
    for (std::size_t k = 0; k < envs.size(); ++k) {
        const auto i = static_cast<std::size_t>(envs[k]);
        const py::object own = take_seed(i);
        py::object seed = calls == nullptr ? py::none() : py::object((*calls)[k][0]);
        if (seed.is_none()) seed = own;
        seeds.append(seed);
        const py::object given = calls == nullptr ? py::none() : py::object((*calls)[k][1]);
        options.append(options_of(i, given.ptr()));
        const int given_some = PyObject_IsTrue(options[k].ptr());
        if (given_some < 0) throw py::error_already_set();
        with_options |= given_some == 1;
    }
    const py::object valid = stepper_.attr("prepare")(ids_of(envs), seeds, options);
    take_errors();
    return valid.cast<Places>();
}

void BatchBlock::replace(const std::vector<std::optional<std::uint64_t>>& seeds,
                         const std::vector<bool>& over) {
    FrameBlock::replace(seeds, over);
    begun_.fill(false);
}

void BatchBlock::leave_infos(const Places& envs, const py::object& infos, const Places& rows,
                             bool final) {
    for (std::size_t k = 0; k < envs.size(); ++k) {
        py::object one = row_of(infos, rows[k]);
        if (in_chunk_) one = copied(one.ptr());
        if (final) {
            py::dict outer;
            outer["final_info"] = one;
            one = outer;
        }
        leave(kInfo, static_cast<std::size_t>(envs[k]), one);
    }
}

// -- leaving --

void BatchBlock::set_options(std::size_t i, const py::object& options, std::int64_t version) {
    FrameBlock::set_options(i, options, version);
    if (!checks_) return;
    wrong_options_ = false;
    for (const auto& item : options_) {
        const py::tuple one = py::reinterpret_borrow<py::tuple>(item.second);
        wrong_options_ |= !stepper_.attr("takes")(one[0]).cast<bool>();
    }
}

py::object BatchBlock::why_leave(std::uint32_t frame, const py::object& actions) {
    if (!checks_) return py::none();
    for (std::size_t i = 0; i < count_; ++i) {
        if (begun_[i] || fresh_[i] || ended_[i]) continue;
        return py::str("an env was stepped before its first reset");
    }
    if (wrong_options_) return py::str("it was given invalid options");
    const py::object given = actions.is_none() ? actions_in(frame) : actions;
    const bool python = actions.is_none() && action_types_.at(frame, first_, 0) >= kPythonNumbers;
    if (native_ != nullptr && is_array(given) && native_->takes(given, python)) return py::none();
    py::list exempt;  // they make no step
    for (std::size_t i = 0; i < count_; ++i) {
        if (ended_[i] || resting_[i]) exempt.append(i);
    }
    const bool valid = stepper_.attr("takes_actions")(given, exempt, python).cast<bool>();
    return valid ? py::none() : py::object(py::str("an action was not in its space"));
}

py::object BatchBlock::why_not_reset(const py::list& calls) const {
    if (!checks_) return py::none();
    bool wrong = wrong_options_;
    for (const py::handle call : calls) {
        wrong |= !call.is_none() && !stepper_.attr("takes")(call[py::int_(1)]).cast<bool>();
    }
    return wrong ? py::object(py::str("it was given invalid options")) : py::none();
}

bool BatchBlock::has_left(std::uint32_t frame, const py::object& actions) {
    if (!checks_ || successor_) return static_cast<bool>(successor_);
    const py::object why = why_leave(frame, actions);
    if (why.is_none()) return false;
    const py::object leave = py::getattr(py::cast(this), "leave", py::none());
    if (leave.is_none()) return false;
    successor_ = leave(why);
    return true;
}

// -- states --

py::dict BatchBlock::episodes() const {
    py::dict arrays;
    arrays["elapsed"] = elapsed_;
    arrays["begun"] = begun_.array();
    arrays["ended"] = ended_.array();
    arrays["used"] = used_;
    return arrays;
}

py::object BatchBlock::states(const py::object& ids) const {
    return stepper_.attr("states")(ids, episodes());
}

void BatchBlock::set_states(const py::object& ids, const py::object& states) {
    stepper_.attr("set_states")(ids, states, episodes());
    for (const py::handle id : ids) {
        const std::size_t i = checked_env(id.cast<std::size_t>());
        set_ended(i, ended_[i]);  // perhaps a state of another mode
        take_seed(i);
    }
}

void register_batch_block(py::module_& m) {
    Class<BatchBlock, FrameBlock>(m, "BatchBlock", py::dynamic_attr())
        .def(py::init<const py::object&, std::size_t, std::size_t, const std::shared_ptr<Meter>&,
                      std::optional<std::int64_t>, bool>(),
             py::arg("stepper"), py::arg("count"), py::arg("first"), py::arg("meter"),
             py::arg("limit"), py::arg("inline") = false)
        .def("why_leave", &BatchBlock::why_leave, py::arg("frame"), py::arg("actions"),
             "Return why the envs cannot step together; None if they can.")
        .def("why_not_reset", &BatchBlock::why_not_reset, py::arg("calls"),
             "Return why the envs cannot be reset together; None if they can.")
        .def("states", &BatchBlock::states, py::arg("ids"),
             "Return the states of envs, one row each.")
        .def("set_states", &BatchBlock::set_states, py::arg("ids"), py::arg("states"),
             "Set the states of envs.")
        .def("set_stopped", &BatchBlock::set_stopped, py::arg("envs"),
             "Let the envs in this mask make no steps, in a chunk; None: let all.")
        .def_property_readonly("stepper", &BatchBlock::stepper, "What steps the envs.")
        .def_property_readonly("elapsed", &BatchBlock::elapsed,
                               "The number of steps of each env's episode.")
        .def_property_readonly(
            "begun", [](const BatchBlock& self) { return self.begun().array(); },
            "Whether each env was reset at least once.");
}

}  // namespace pysampler::bindings
