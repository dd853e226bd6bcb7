// Writes the results of a step or a reset of a batch into the rows of a frame, for all its envs or
// for some. In Python this part of a step would take longer than the physics of a small block.
#include <pybind11/critical_section.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"
#include "meter.h"
#include "support.h"

namespace pysampler::bindings {
namespace {

// The rows of a block's envs in an array [frames, envs, ...].
class FrameRows {
 public:
    FrameRows() = default;
    FrameRows(const py::array& array, std::size_t first)
        : owner_(array), frame_bytes_(static_cast<std::size_t>(array.strides(0))) {
        row_bytes_ = static_cast<std::size_t>(array.itemsize());
        shape_.assign(array.shape() + 2, array.shape() + array.ndim());
        for (const py::ssize_t size : shape_) row_bytes_ *= static_cast<std::size_t>(size);
        bytes_ = static_cast<std::byte*>(const_cast<void*>(array.data())) + first * row_bytes_;
    }

    template <class T = std::byte>
    T* at(std::uint32_t frame) const {
        return reinterpret_cast<T*>(bytes_ + frame * frame_bytes_);
    }
    explicit operator bool() const { return bytes_ != nullptr; }
    std::size_t row_bytes() const { return row_bytes_; }
    // Whether `array` has `count` rows of this shape.
    bool is_shape_of(const py::array& array, std::size_t count) const {
        return static_cast<std::size_t>(array.ndim()) == shape_.size() + 1 &&
               static_cast<std::size_t>(array.shape(0)) == count &&
               std::equal(shape_.begin(), shape_.end(), array.shape() + 1);
    }

 private:
    py::array owner_;
    std::vector<py::ssize_t> shape_;  // of a row
    std::byte* bytes_ = nullptr;
    std::size_t frame_bytes_ = 0;
    std::size_t row_bytes_ = 0;
};

using Ids = py::array_t<std::int32_t, py::array::c_style>;

// Which rows of an array belong to which envs. Borrows its indices.
struct Chosen {
    std::size_t count;
    const std::int32_t* envs = nullptr;  // nullptr: env k
    const std::int32_t* rows = nullptr;  // nullptr: row k of an array of `count` rows

    std::size_t env(std::size_t k) const {
        return envs == nullptr ? k : static_cast<std::size_t>(envs[k]);
    }
    void fill(std::byte* to, int value) const {
        if (envs == nullptr) {
            std::memset(to, value, count);
        } else {
            for (std::size_t k = 0; k < count; ++k) to[envs[k]] = static_cast<std::byte>(value);
        }
    }
    void copy(std::byte* to, const void* from, std::size_t bytes) const {
        const auto* source = static_cast<const std::byte*>(from);
        if (envs == nullptr && rows == nullptr) {
            std::memmove(to, source, count * bytes);
            return;
        }
        for (std::size_t k = 0; k < count; ++k) {
            const std::size_t row = rows == nullptr ? k : static_cast<std::size_t>(rows[k]);
            std::memmove(to + env(k) * bytes, source + row * bytes, bytes);
        }
    }
};

struct InfoColumn {
    py::object key;
    int type;  // NumPy's number of the dtype
    FrameRows values;
    FrameRows mask;
};

// Owner: that of the block which writes with it.
class BatchRows {
 public:
    BatchRows(std::size_t first, std::size_t count, const std::shared_ptr<Meter>& meter,
              const py::array_t<std::int64_t>& elapsed, std::int64_t limit)
        : first_(first), count_(count), meter_(meter), elapsed_(elapsed), limit_(limit) {
        if (static_cast<std::size_t>(elapsed.size()) != count) {
            throw py::value_error("cannot make rows: expected one number of steps for each env");
        }
    }

    void use(const py::object& frames, bool infos) {
        const py::list observations = frames.attr("observations");
        const py::list finals = frames.attr("final_observations");
        finals_ = finals.empty() ? FrameRows() : FrameRows(finals[0].cast<py::array>(), first_);
        if (!observations.empty()) {
            observations_ = FrameRows(observations[0].cast<py::array>(), first_);
            type_ = observations[0].cast<py::array>().dtype().num();
        }
        rewards_ = FrameRows(frames.attr("rewards").cast<py::array>(), first_);
        terminated_ = FrameRows(frames.attr("terminated").cast<py::array>(), first_);
        truncated_ = FrameRows(frames.attr("truncated").cast<py::array>(), first_);
        has_final_ = FrameRows(frames.attr("has_final").cast<py::array>(), first_);
        frames_ = static_cast<std::size_t>(frames.attr("count").cast<int>());
        infos_ = infos;
        columns_.clear();
        final_columns_.clear();
        final_info_ = FrameRows();
        masks_.clear();
    }

    // `final_info`: whether it is the mask of that dict.
    void add_mask(const py::array& mask, bool final_info) {
        masks_.emplace_back(mask, first_);
        if (final_info) final_info_ = masks_.back();
    }

    // `final`: of the dict final_info.
    void add_column(const py::object& key, const py::array& values, const py::array& mask,
                    bool final) {
        (final ? final_columns_ : columns_)
            .push_back(
                {key, values.dtype().num(), FrameRows(values, first_), FrameRows(mask, first_)});
        add_mask(mask, false);
    }

    // Begins a step or a reset: clears the infos of these envs.
    void begin(std::uint32_t frame) {
        expect(frame);
        began_ = now_ns();
        meter_->at(static_cast<std::int64_t>(first_), began_);
        for (const FrameRows& mask : masks_) std::memset(mask.at(frame), 0, count_);
        std::memset(has_final_.at(frame), 0, count_);
    }

    // Writes the results of a step of the envs `ids`; none: all envs of the block. Returns the rows
    // of those whose episodes have ended, and a dict of the infos that have no column; or None.
    // Without `truncated`, episodes are truncated at the limit. Steps of envs in the mask
    // `uncounted` do not count.
    std::pair<py::object, py::object> write(std::uint32_t frame, const std::optional<Ids>& ids,
                                            const py::object& observations,
                                            const py::object& rewards, const py::object& terminated,
                                            const py::dict& infos, const py::object& truncated,
                                            const py::object& uncounted) {
        expect(frame);
        const Chosen chosen = ids ? chosen_of(*ids) : Chosen{count_};
        if (!observations.is_none()) {
            write_observations(frame, observations.cast<py::array>(), chosen);
        }
        const auto numbers =
            rewards.cast<py::array_t<double, py::array::c_style | py::array::forcecast>>();
        if (!rewards_.is_shape_of(numbers, chosen.count)) {
            throw py::value_error(
                "rewards of shape " + std::string(py::str(numbers.attr("shape"))) +
                ", expected a row for each of the " + std::to_string(chosen.count) +
                " envs, of the shape of their reward_space");
        }
        chosen.copy(rewards_.at(frame), numbers.data(), rewards_.row_bytes());
        write_flags("terminated", terminated_.at(frame), terminated, chosen);
        if (truncated.is_none()) {
            count_step(frame, chosen);
        } else {
            write_flags("truncated", truncated_.at(frame), truncated, chosen);
        }
        py::object rest = py::none();
        if (infos_) rest = write_to(columns_, frame, infos, chosen);
        py::object ended = ended_rows(frame, chosen);
        std::vector<std::byte> skipped;
        if (!uncounted.is_none()) {
            skipped.resize(count_);
            write_flags("uncounted", skipped.data(), uncounted, chosen);
        }
        const std::int64_t each =
            lap() / std::max<std::int64_t>(1, static_cast<std::int64_t>(chosen.count));
        for (std::size_t k = 0; k < chosen.count; ++k) {
            const std::size_t i = chosen.env(k);
            if (skipped.empty() || skipped[i] == std::byte{0}) meter_->stepped(first_ + i, each);
        }
        return {std::move(ended), std::move(rest)};
    }

    // Writes the first observations and the infos of the envs `ids`, whose resets began when the
    // last call ended; returns the infos that have no column, or None. With `has_final` it clears
    // their rewards, ends and infos first, since they made no step that counts.
    py::object write_resets(std::uint32_t frame, const Ids& ids, const py::array& observations,
                            const py::dict& infos, std::optional<std::uint8_t> has_final) {
        expect(frame);
        const Chosen chosen = chosen_of(ids);
        write_observations(frame, observations, chosen);
        std::int64_t* elapsed = elapsed_.mutable_data();
        for (std::size_t k = 0; k < chosen.count; ++k) elapsed[chosen.env(k)] = 0;
        if (has_final) {
            chosen.fill(has_final_.at(frame), *has_final);
            for (const FrameRows* rows : {&rewards_, &terminated_, &truncated_}) {
                const std::size_t bytes = rows->row_bytes();
                for (std::size_t k = 0; k < chosen.count; ++k) {
                    std::memset(rows->at(frame) + chosen.env(k) * bytes, 0, bytes);
                }
            }
            for (const FrameRows& mask : masks_) chosen.fill(mask.at(frame), 0);
        }
        py::object rest = py::none();
        if (infos_) rest = write_to(columns_, frame, infos, chosen);
        const std::int64_t each =
            lap() / std::max<std::int64_t>(1, static_cast<std::int64_t>(chosen.count));
        for (std::size_t k = 0; k < chosen.count; ++k) {
            meter_->was_reset(first_ + chosen.env(k), each);
        }
        return rest;
    }

    // Writes the last observations of episodes of `envs`, which are these rows of the array, and
    // clears the infos of the envs.
    void write_finals(std::uint32_t frame, const Ids& envs, const Ids& rows,
                      const py::array& observations, std::uint8_t has_final) {
        expect(frame);
        const Chosen chosen = chosen_of(envs, rows);
        if (!copied(observations, type_, finals_, frame, chosen)) {
            throw py::value_error("observations: expected one row for each env, as in the space");
        }
        chosen.fill(has_final_.at(frame), has_final);
        for (const FrameRows& mask : masks_) chosen.fill(mask.at(frame), 0);
    }

    // Writes infos of `envs`, which are these rows of the arrays; with `final` to the dict
    // final_info. Returns the infos that have no column, or None.
    py::object write_infos(std::uint32_t frame, const Ids& envs, const Ids& rows,
                           const py::dict& infos, bool final) {
        expect(frame);
        const Chosen chosen = chosen_of(envs, rows);
        if (!final) return write_to(columns_, frame, infos, chosen);
        py::object rest = write_to(final_columns_, frame, infos, chosen);
        if (final_info_) {
            chosen.fill(final_info_.at(frame), 1);
        } else if (rest.is_none()) {
            rest = py::dict();  // final_info itself has no column
        }
        return rest;
    }

 private:
    static bool is_alike(const py::array& array, int type) {
        const char order = array.dtype().byteorder();
        return array.dtype().num() == type && (order == '=' || order == '|');
    }

    void expect(std::uint32_t frame) const {
        if (frame >= frames_) {
            throw py::index_error("cannot use frame " + std::to_string(frame) + ": no such frame");
        }
    }

    Chosen chosen_of(const Ids& envs) const {
        for (const std::int32_t i : span_of(envs)) {
            if (i < 0 || static_cast<std::size_t>(i) >= count_) {
                throw py::index_error("cannot write results of env " + std::to_string(i) +
                                      ", which is not in the block");
            }
        }
        return {static_cast<std::size_t>(envs.size()), envs.data()};
    }

    Chosen chosen_of(const Ids& envs, const Ids& rows) const {
        Chosen chosen = chosen_of(envs);
        if (rows.size() != envs.size()) {
            throw py::value_error("cannot write results: expected a row for each env");
        }
        chosen.rows = rows.data();
        return chosen;
    }

    static std::span<const std::int32_t> span_of(const Ids& ids) {
        return {ids.data(), static_cast<std::size_t>(ids.size())};
    }

    // Returns the time since the step, or since the last call.
    std::int64_t lap() {
        const std::int64_t now = now_ns();
        return now - std::exchange(began_, now);
    }

    static void write_flags(const char* what, std::byte* to, const py::object& flags,
                            const Chosen& chosen) {
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

    // Counts the step, and truncates episodes at the limit.
    void count_step(std::uint32_t frame, const Chosen& chosen) {
        auto* truncated = truncated_.at<std::uint8_t>(frame);
        std::int64_t* elapsed = elapsed_.mutable_data();
        for (std::size_t k = 0; k < chosen.count; ++k) {
            const std::size_t i = chosen.env(k);
            truncated[i] = ++elapsed[i] >= limit_ ? 1 : 0;
        }
    }

    py::object ended_rows(std::uint32_t frame, const Chosen& chosen) const {
        const auto* terminated = terminated_.at<std::uint8_t>(frame);
        const auto* truncated = truncated_.at<std::uint8_t>(frame);
        std::vector<std::int32_t> rows;
        for (std::size_t k = 0; k < chosen.count; ++k) {
            const std::size_t i = chosen.env(k);
            if ((truncated[i] | terminated[i]) != 0) rows.push_back(static_cast<std::int32_t>(k));
        }
        if (rows.empty()) return py::none();
        return Ids(static_cast<py::ssize_t>(rows.size()), rows.data());
    }

    // Copies rows of an array, if its type and shape match the target's.
    static bool copied(const py::array& array, int type, const FrameRows& to, std::uint32_t frame,
                       const Chosen& chosen) {
        if (array.ndim() == 0 || !is_alike(array, type)) return false;
        const auto height = static_cast<std::size_t>(array.shape(0));
        const bool some = chosen.rows != nullptr;
        if (!to.is_shape_of(array, some ? height : chosen.count)) return false;
        for (std::size_t k = 0; some && k < chosen.count; ++k) {
            if (static_cast<std::size_t>(chosen.rows[k]) >= height) return false;
        }
        const py::array rows = py::array::ensure(array, py::array::c_style);
        chosen.copy(to.at(frame), rows.data(), to.row_bytes());
        return true;
    }

    void write_observations(std::uint32_t frame, const py::array& array, const Chosen& chosen) {
        if (!copied(array, type_, observations_, frame, chosen)) {
            throw py::value_error("observations: expected one row for each env, as in the space");
        }
    }

    static py::object write_to(const std::vector<InfoColumn>& columns, std::uint32_t frame,
                               const py::dict& infos, const Chosen& chosen) {
        py::object rest = py::none();
        std::size_t guess = 0;
        const py::scoped_critical_section alone{infos};
        for (const auto& item : infos) {
            // Keep references: comparing a key may run Python code, which changes the dict.
            const auto key = py::reinterpret_borrow<py::object>(item.first);
            const auto value = py::reinterpret_borrow<py::object>(item.second);
            if (write_info(columns, frame, key, value, chosen, guess)) continue;
            if (rest.is_none()) rest = py::dict();
            rest[key] = value;
        }
        return rest;
    }

    // False if no column matches. Keys mostly come in the order of the columns: start at `guess`.
    static bool write_info(const std::vector<InfoColumn>& columns, std::uint32_t frame,
                           py::handle key, py::handle value, const Chosen& chosen,
                           std::size_t& guess) {
        if (!py::isinstance<py::array>(value)) return false;
        const auto array = py::reinterpret_borrow<py::array>(value);
        for (std::size_t tried = 0; tried < columns.size(); ++tried, ++guess) {
            if (guess >= columns.size()) guess = 0;
            const InfoColumn& column = columns[guess];
            if (!column.key.is(key) && !column.key.equal(key)) continue;
            if (!copied(array, column.type, column.values, frame, chosen)) continue;
            chosen.fill(column.mask.at(frame), 1);
            ++guess;
            return true;
        }
        return false;
    }

    std::size_t first_;
    std::size_t count_;
    std::shared_ptr<Meter> meter_;
    py::array_t<std::int64_t> elapsed_;
    std::int64_t limit_;
    int type_ = 0;  // of observations
    std::size_t frames_ = 0;
    bool infos_ = false;
    FrameRows observations_, finals_, rewards_, terminated_, truncated_, has_final_;
    std::vector<FrameRows> masks_;
    FrameRows final_info_;
    std::vector<InfoColumn> columns_, final_columns_;
    std::int64_t began_ = 0;
};

}  // namespace

template <>
inline constexpr bool is_bound<BatchRows> = true;

void register_batch_rows(py::module_& m) {
    Class<BatchRows>(m, "BatchRows")
        .def(py::init<std::size_t, std::size_t, const std::shared_ptr<Meter>&,
                      const py::array_t<std::int64_t>&, std::int64_t>(),
             py::arg("first"), py::arg("count"), py::arg("meter"), py::arg("elapsed"),
             py::arg("limit"))
        .def("use", &BatchRows::use, py::arg("frames"), py::arg("infos"),
             "Write to these frames from now on, with infos or without.")
        .def("add_mask", &BatchRows::add_mask, py::arg("mask"), py::arg("final_info") = false,
             "Clear this mask of infos too when a step begins; it may be that of final_info.")
        .def("add_column", &BatchRows::add_column, py::arg("key"), py::arg("values"),
             py::arg("mask"), py::arg("final") = false,
             "Write the infos of this key to these arrays; with `final`, those of final_info.")
        .def("begin", &BatchRows::begin, py::arg("frame"), "Begin a step or a reset.")
        .def("write", &BatchRows::write, py::arg("frame"), py::arg("ids"), py::arg("observations"),
             py::arg("rewards"), py::arg("terminated"), py::arg("infos"),
             py::arg("truncated") = py::none(), py::arg("uncounted") = py::none(),
             "Write the results of a step of some envs, or all if ids is None; return the rows "
             "whose episodes have ended, or None, and the infos without a column, or None. If "
             "observations are None, they are not written. Without `truncated`, the limit "
             "applies. Steps of envs in the mask `uncounted` do not count.")
        .def("write_resets", &BatchRows::write_resets, py::arg("frame"), py::arg("ids"),
             py::arg("observations"), py::arg("infos"), py::arg("has_final"),
             "Write the first observations and infos of some envs; return the infos without a "
             "column, or None.")
        .def("write_finals", &BatchRows::write_finals, py::arg("frame"), py::arg("envs"),
             py::arg("rows"), py::arg("observations"), py::arg("has_final"),
             "Write the last observations of episodes, some rows of an array, and clear the infos "
             "of their envs.")
        .def("write_infos", &BatchRows::write_infos, py::arg("frame"), py::arg("envs"),
             py::arg("rows"), py::arg("infos"), py::arg("final") = false,
             "Write infos of some envs, some rows of arrays; with `final` to final_info. Return "
             "the infos without a column, or None.");
}

}  // namespace pysampler::bindings
