#include "batch_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "clock.h"

namespace pysampler::bindings {

template <>
inline constexpr bool is_bound<BatchRows> = true;

namespace {

py::object or_none(std::optional<py::dict> rest) {
    return rest ? py::object(*std::move(rest)) : py::none();
}

void write_flags(const char* what, std::byte* to, const py::object& flags, const Chosen& chosen) {
    if (PyBool_Check(flags.ptr())) {
        chosen.fill(to, flags.ptr() == Py_True ? 1 : 0);
        return;
    }
    const auto array = flags.cast<py::array_t<bool, py::array::c_style>>();
    if (array.ndim() != 1 || array.shape(0) != static_cast<py::ssize_t>(chosen.count)) {
        throw py::value_error(std::string(what) + ": expected one flag for each env");
    }
    chosen.copy(to, array.data(), 1);
}

}  // namespace

BatchRows::BatchRows(std::size_t first, std::size_t count, const std::shared_ptr<Meter>& meter,
                     const py::array_t<std::int64_t>& elapsed, std::int64_t limit)
    : first_(first), count_(count), meter_(meter), elapsed_(elapsed), limit_(limit) {
    if (static_cast<std::size_t>(elapsed.size()) != count) {
        throw py::value_error("cannot make rows: expected one number of steps for each env");
    }
}

void BatchRows::use(const py::object& frames, const std::shared_ptr<Infos>& infos, bool all_infos) {
    observations_ = leaves_of(frames.attr("observations"));
    finals_ = leaves_of(frames.attr("final_observations"));
    rewards_ = std::make_unique<Leaf>(frames.attr("rewards").cast<py::array>());
    terminated_ = std::make_unique<Leaf>(frames.attr("terminated").cast<py::array>());
    truncated_ = std::make_unique<Leaf>(frames.attr("truncated").cast<py::array>());
    has_final_ = std::make_unique<Leaf>(frames.attr("has_final").cast<py::array>());
    frames_ = static_cast<std::size_t>(frames.attr("count").cast<int>());
    infos_ = infos;
    all_infos_ = all_infos;
}

void BatchRows::start() {
    began_ = now_ns();
    meter_->at(static_cast<std::int64_t>(first_), began_);
}

void BatchRows::begin(std::uint32_t frame) {
    expect(frame);
    start();
    infos_->clear(frame, first_, count_);
    std::memset(at<std::byte>(has_final_, frame), 0, count_);
}

std::pair<py::object, py::object> BatchRows::write(
    std::uint32_t frame, const std::optional<Ids>& ids, const py::object& observations,
    const py::object& rewards, const py::object& terminated, const py::dict& infos,
    const py::object& truncated, const py::object& uncounted) {
    expect(frame);
    const Chosen chosen = ids ? chosen_of(*ids) : Chosen{count_};
    if (!observations.is_none()) {
        write_observations(frame, observations.cast<py::array>(), chosen);
    }
    const auto numbers =
        rewards.cast<py::array_t<double, py::array::c_style | py::array::forcecast>>();
    if (!rewards_->store_rows(frame, first_, numbers, chosen)) {
        throw py::value_error("rewards of shape " + std::string(py::str(numbers.attr("shape"))) +
                              ", expected a row for each of the " + std::to_string(chosen.count) +
                              " envs, of the shape of their reward_space");
    }
    write_flags("terminated", at<std::byte>(terminated_, frame), terminated, chosen);
    if (truncated.is_none()) {
        count_step(frame, chosen);
    } else {
        write_flags("truncated", at<std::byte>(truncated_, frame), truncated, chosen);
    }
    py::object rest = py::none();
    if (all_infos_) rest = or_none(infos_->store_rows(frame, first_, chosen, infos, false));
    py::object ended = ended_rows(frame, chosen);
    std::vector<std::byte> skipped;
    if (!uncounted.is_none()) {
        skipped.resize(count_);
        write_flags("uncounted", skipped.data(), uncounted, chosen);
    }
    const std::int64_t each = lap(chosen);
    for (std::size_t k = 0; k < chosen.count; ++k) {
        const std::size_t i = chosen.env(k);
        if (skipped.empty() || skipped[i] == std::byte{0}) meter_->stepped(first_ + i, each);
    }
    return {std::move(ended), std::move(rest)};
}

py::object BatchRows::write_resets(std::uint32_t frame, const Ids& ids,
                                   const py::array& observations, const py::dict& infos,
                                   std::optional<std::uint8_t> has_final) {
    expect(frame);
    const Chosen chosen = chosen_of(ids);
    write_observations(frame, observations, chosen);
    std::int64_t* elapsed = elapsed_.mutable_data();
    for (std::size_t k = 0; k < chosen.count; ++k) elapsed[chosen.env(k)] = 0;
    if (has_final) {
        chosen.fill(at<std::byte>(has_final_, frame), *has_final);
        for (const auto* leaf : {&rewards_, &terminated_, &truncated_}) {
            for (std::size_t k = 0; k < chosen.count; ++k) {
                std::memset((*leaf)->row(frame, first_ + chosen.env(k)), 0, (*leaf)->row_bytes());
            }
        }
        infos_->clear(frame, first_, chosen);
    }
    py::object rest = py::none();
    if (all_infos_) rest = or_none(infos_->store_rows(frame, first_, chosen, infos, false));
    const std::int64_t each = lap(chosen);
    for (std::size_t k = 0; k < chosen.count; ++k) {
        meter_->was_reset(first_ + chosen.env(k), each);
    }
    return rest;
}

void BatchRows::write_finals(std::uint32_t frame, const Ids& envs, const Ids& rows,
                             const py::array& observations, std::uint8_t has_final) {
    expect(frame);
    const Chosen chosen = chosen_of(envs, rows);
    if (finals_.empty() || !finals_[0].store_rows(frame, first_, observations, chosen)) {
        throw py::value_error("observations: expected one row for each env, as in the space");
    }
    chosen.fill(at<std::byte>(has_final_, frame), has_final);
    infos_->clear(frame, first_, chosen);
}

py::object BatchRows::write_infos(std::uint32_t frame, const Ids& envs, const Ids& rows,
                                  const py::dict& infos, bool final) {
    expect(frame);
    return or_none(infos_->store_rows(frame, first_, chosen_of(envs, rows), infos, final));
}

void BatchRows::expect(std::uint32_t frame) const {
    if (frame >= frames_) {
        throw py::index_error("cannot use frame " + std::to_string(frame) + ": no such frame");
    }
}

Chosen BatchRows::chosen_of(const Ids& envs) const {
    const auto size = static_cast<std::size_t>(envs.size());
    for (std::size_t k = 0; k < size; ++k) {
        const std::int32_t i = envs.data()[k];
        if (i < 0 || static_cast<std::size_t>(i) >= count_) {
            throw py::index_error("cannot write results of env " + std::to_string(i) +
                                  ", which is not in the block");
        }
    }
    return {size, envs.data()};
}

Chosen BatchRows::chosen_of(const Ids& envs, const Ids& rows) const {
    Chosen chosen = chosen_of(envs);
    if (rows.size() != envs.size()) {
        throw py::value_error("cannot write results: expected a row for each env");
    }
    chosen.rows = rows.data();
    return chosen;
}

// Returns each env's share of the time since the step, or since the last call.
std::int64_t BatchRows::lap(const Chosen& chosen) {
    const std::int64_t now = now_ns();
    const auto envs = std::max<std::int64_t>(1, static_cast<std::int64_t>(chosen.count));
    return (now - std::exchange(began_, now)) / envs;
}

// Counts the step, and truncates episodes at the limit.
void BatchRows::count_step(std::uint32_t frame, const Chosen& chosen) {
    auto* truncated = at<std::uint8_t>(truncated_, frame);
    std::int64_t* elapsed = elapsed_.mutable_data();
    for (std::size_t k = 0; k < chosen.count; ++k) {
        const std::size_t i = chosen.env(k);
        truncated[i] = ++elapsed[i] >= limit_ ? 1 : 0;
    }
}

py::object BatchRows::ended_rows(std::uint32_t frame, const Chosen& chosen) const {
    const auto* terminated = at<std::uint8_t>(terminated_, frame);
    const auto* truncated = at<std::uint8_t>(truncated_, frame);
    std::vector<std::int32_t> rows;
    for (std::size_t k = 0; k < chosen.count; ++k) {
        const std::size_t i = chosen.env(k);
        if ((truncated[i] | terminated[i]) != 0) rows.push_back(static_cast<std::int32_t>(k));
    }
    if (rows.empty()) return py::none();
    return Ids(static_cast<py::ssize_t>(rows.size()), rows.data());
}

void BatchRows::write_observations(std::uint32_t frame, const py::array& array,
                                   const Chosen& chosen) {
    if (observations_.empty() || !observations_[0].store_rows(frame, first_, array, chosen)) {
        throw py::value_error("observations: expected one row for each env, as in the space");
    }
}

void register_batch_rows(py::module_& m) {
    Class<BatchRows>(m, "BatchRows")
        .def(py::init<std::size_t, std::size_t, const std::shared_ptr<Meter>&,
                      const py::array_t<std::int64_t>&, std::int64_t>(),
             py::arg("first"), py::arg("count"), py::arg("meter"), py::arg("elapsed"),
             py::arg("limit"))
        .def("use", &BatchRows::use, py::arg("frames"), py::arg("infos"), py::arg("all_infos"),
             "Write to these frames from now on, with all infos or those of an episode's end.")
        .def("begin", &BatchRows::begin, py::arg("frame"), "Begin a step or a reset.")
        .def("write", &BatchRows::write, py::arg("frame"), py::arg("ids"), py::arg("observations"),
             py::arg("rewards"), py::arg("terminated"), py::arg("infos"), py::arg("truncated"),
             py::arg("uncounted") = py::none(),
             "Write the results of a step of some envs, or all if ids is None; return the rows "
             "whose episodes have ended, or None, and the infos without a column, or None. If "
             "observations are None, they are not written. Without `truncated`, the limit "
             "applies. Steps of envs in the mask `uncounted` do not count.")
        .def("write_infos", &BatchRows::write_infos, py::arg("frame"), py::arg("envs"),
             py::arg("rows"), py::arg("infos"), py::arg("final") = false,
             "Write infos of some envs, some rows of arrays; with `final` to final_info. Return "
             "the infos without a column, or None.");
}

}  // namespace pysampler::bindings
